//! Plans as bytes, with the plug-ins of the functions they call.
//!
//! A query is sent twice: as a logical plan from the client to the scheduler, and in parts as physical plans from
//! there to executors. DataFusion writes a function into either by its name, and lets a codec add bytes from which the
//! other side makes the function again. Those bytes are the plug-in. Everything else is Ballista's own codec.

use crate::executor::{Loaded, Plugins};
use crate::function::{Aggregate, Scalar, aggregate, scalar};
use crate::plugin::{Kind, Plugin};
use ballista_core::serde::{BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, exec_datafusion_err};
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, Extension, LogicalPlan, ScalarUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use prost::Message;
use std::sync::Arc;

/// Ballista's codec `C`, and plug-ins.
#[derive(Debug, Default)]
pub(crate) struct Carrying<C> {
    ballista: C,
    /// On executors: by whom functions are loaded when they are read.
    plugins: Option<Arc<Plugins>>,
}

pub(crate) type Logical = Carrying<BallistaLogicalExtensionCodec>;
pub(crate) type Physical = Carrying<BallistaPhysicalExtensionCodec>;

impl Physical {
    pub(crate) fn executing(plugins: Arc<Plugins>) -> Self {
        Carrying { plugins: Some(plugins), ..Default::default() }
    }
}

impl<C> Carrying<C> {
    /// # Errors
    /// The bytes are no plug-in, or the executor refuses it: then the error says why.
    fn read(&self, function: &str, bytes: &[u8], kind: Kind) -> Result<(Arc<Plugin>, Option<Loaded>)> {
        let plugin = Plugin::decode(bytes).map_err(|error| exec_datafusion_err!("{function}: no plug-in: {error}"))?;
        if plugin.function != function || plugin.kind() != kind {
            return Err(exec_datafusion_err!("the plug-in of {function} is {plugin:?}, where {kind:?} was expected"));
        }
        let loaded = self.plugins.as_ref().map(|plugins| plugins.get(&plugin)).transpose();
        Ok((Arc::new(plugin), loaded.map_err(|why| exec_datafusion_err!("{why}"))?))
    }

    fn read_scalar(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        let (plugin, loaded) = self.read(name, bytes, Kind::Scalar)?;
        let loaded = loaded.and_then(|loaded| match loaded {
            Loaded::Scalar(score) => Some(score),
            Loaded::Aggregate(_) => None,
        });
        Ok(Arc::new(scalar(plugin, loaded)))
    }

    fn read_aggregate(&self, name: &str, bytes: &[u8]) -> Result<Arc<AggregateUDF>> {
        let (plugin, loaded) = self.read(name, bytes, Kind::Aggregate)?;
        let loaded = loaded.and_then(|loaded| match loaded {
            Loaded::Aggregate(distinct) => Some(distinct),
            Loaded::Scalar(_) => None,
        });
        Ok(Arc::new(aggregate(plugin, loaded)))
    }
}

/// Writes the plug-in of a function that carries one. Others are known by name on the other side.
fn write_scalar(function: &ScalarUDF, bytes: &mut Vec<u8>) -> Option<()> {
    let plugin = function.inner().downcast_ref::<Scalar>()?.plugin();
    bytes.extend(plugin.encode_to_vec());
    Some(())
}

fn write_aggregate(function: &AggregateUDF, bytes: &mut Vec<u8>) -> Option<()> {
    let plugin = function.inner().downcast_ref::<Aggregate>()?.plugin();
    bytes.extend(plugin.encode_to_vec());
    Some(())
}

impl LogicalExtensionCodec for Logical {
    fn try_decode(&self, bytes: &[u8], inputs: &[LogicalPlan], task: &TaskContext) -> Result<Extension> {
        self.ballista.try_decode(bytes, inputs, task)
    }

    fn try_encode(&self, node: &Extension, bytes: &mut Vec<u8>) -> Result<()> {
        self.ballista.try_encode(node, bytes)
    }

    fn try_decode_table_provider(
        &self,
        bytes: &[u8],
        table: &TableReference,
        schema: SchemaRef,
        task: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        self.ballista.try_decode_table_provider(bytes, table, schema, task)
    }

    fn try_encode_table_provider(
        &self,
        table: &TableReference,
        provider: Arc<dyn TableProvider>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.ballista.try_encode_table_provider(table, provider, bytes)
    }

    fn try_decode_file_format(&self, bytes: &[u8], task: &TaskContext) -> Result<Arc<dyn FileFormatFactory>> {
        self.ballista.try_decode_file_format(bytes, task)
    }

    fn try_encode_file_format(&self, bytes: &mut Vec<u8>, format: Arc<dyn FileFormatFactory>) -> Result<()> {
        self.ballista.try_encode_file_format(bytes, format)
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        match bytes {
            [] => self.ballista.try_decode_udf(name, bytes),
            _ => self.read_scalar(name, bytes),
        }
    }

    fn try_encode_udf(&self, function: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        write_scalar(function, bytes).map_or_else(|| self.ballista.try_encode_udf(function, bytes), Ok)
    }

    fn try_decode_udaf(&self, name: &str, bytes: &[u8]) -> Result<Arc<AggregateUDF>> {
        match bytes {
            [] => self.ballista.try_decode_udaf(name, bytes),
            _ => self.read_aggregate(name, bytes),
        }
    }

    fn try_encode_udaf(&self, function: &AggregateUDF, bytes: &mut Vec<u8>) -> Result<()> {
        write_aggregate(function, bytes).map_or_else(|| self.ballista.try_encode_udaf(function, bytes), Ok)
    }
}

impl PhysicalExtensionCodec for Physical {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        task: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.ballista.try_decode(bytes, inputs, task, converter)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        self.ballista.try_encode(node, bytes, converter)
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        match bytes {
            [] => self.ballista.try_decode_udf(name, bytes),
            _ => self.read_scalar(name, bytes),
        }
    }

    fn try_encode_udf(&self, function: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        write_scalar(function, bytes).map_or_else(|| self.ballista.try_encode_udf(function, bytes), Ok)
    }

    fn try_decode_udaf(&self, name: &str, bytes: &[u8]) -> Result<Arc<AggregateUDF>> {
        match bytes {
            [] => self.ballista.try_decode_udaf(name, bytes),
            _ => self.read_aggregate(name, bytes),
        }
    }

    fn try_encode_udaf(&self, function: &AggregateUDF, bytes: &mut Vec<u8>) -> Result<()> {
        write_aggregate(function, bytes).map_or_else(|| self.ballista.try_encode_udaf(function, bytes), Ok)
    }
}
