//! Functions of SQL that carry their plug-in.
//!
//! Where queries are planned (client, scheduler) a function has the plug-in's bytes and types, and nothing is loaded:
//! what a stranger sends runs on executors only. There it also has the loaded programs.

use crate::plugin::Plugin;
use bpf_example_datafusion::{Distinct, Score};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A plug-in, and what was made of it. Functions of the same plug-in are equal, loaded or not.
#[derive(Clone)]
struct Carried<F> {
    plugin: Arc<Plugin>,
    signature: Signature,
    loaded: Option<F>,
}

impl<F> Carried<F> {
    fn new(plugin: Arc<Plugin>, arguments: usize, loaded: Option<F>) -> Self {
        let signature = Signature::exact(vec![DataType::Int64; arguments], Volatility::Immutable);
        Carried { plugin, signature, loaded }
    }

    /// # Errors
    /// This process only plans. A constant expression is then left to executors.
    fn loaded(&self) -> Result<&F> {
        match &self.loaded {
            Some(loaded) => Ok(loaded),
            None => exec_err!("{} runs on executors only: it is not loaded here", self.plugin.function),
        }
    }
}

impl<F> std::fmt::Debug for Carried<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.plugin.fmt(f)
    }
}

impl<F> PartialEq for Carried<F> {
    fn eq(&self, other: &Self) -> bool {
        self.plugin == other.plugin
    }
}

impl<F> Eq for Carried<F> {}

impl<F> Hash for Carried<F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.plugin.hash(state);
    }
}

/// A scalar function of two columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scalar(Carried<Score>);

/// An aggregate of one column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Aggregate(Carried<Distinct>);

/// A scalar function, loaded or only planned with.
pub(crate) fn scalar(plugin: Arc<Plugin>, loaded: Option<Score>) -> ScalarUDF {
    ScalarUDF::new_from_impl(Scalar(Carried::new(plugin, 2, loaded)))
}

/// An aggregate, loaded or only planned with.
pub(crate) fn aggregate(plugin: Arc<Plugin>, loaded: Option<Distinct>) -> AggregateUDF {
    AggregateUDF::new_from_impl(Aggregate(Carried::new(plugin, 1, loaded)))
}

impl Scalar {
    pub(crate) fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }
}

impl Aggregate {
    pub(crate) fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }
}

impl ScalarUDFImpl for Scalar {
    fn name(&self) -> &str {
        &self.0.plugin.function
    }

    fn signature(&self) -> &Signature {
        &self.0.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.0.loaded()?.invoke_with_args(args)
    }
}

impl AggregateUDFImpl for Aggregate {
    fn name(&self) -> &str {
        &self.0.plugin.function
    }

    fn signature(&self) -> &Signature {
        &self.0.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.0.loaded()?.accumulator(args)
    }

    fn state_fields(&self, _: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new("registers", DataType::Binary, false))])
    }
}
