//! BPF programs as functions of SQL: a scalar one over two columns, and an aggregate.
//!
//! Problem: users of a query engine bring functions of their own, which must not break it. Approach: a function is a BPF
//! program over a whole batch. Its context is the batch's columns as Arrow has them in memory, so nothing is copied in
//! or out, and one run is entered a batch, not a row. The verifier proves when the function is registered that the
//! program stays inside the columns and ends.
//!
//! Nulls are the host's: a scalar function computes something for rows that are null, which nobody sees; an aggregate
//! is not given them.

use bpf_runtime::{
    BpfContext, ContextBytes, ContextBytesMut, Engine, Hook, HookPolicy, Linker, MapSet, Object, Program,
};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::buffer::{MutableBuffer, NullBuffer, ScalarBuffer};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

pub const SCORE: &[u8] = include_bytes!("../score.o");
pub const DISTINCT: &[u8] = include_bytes!("../distinct.o");

/// Two columns of 64-bit integers, and the one that is made of them.
#[derive(BpfContext)]
#[bpf(name = "rows")]
#[repr(C)]
pub struct Rows<'b> {
    amount: ContextBytes<'b>,
    hour: ContextBytes<'b>,
    score: ContextBytesMut<'b>,
}

/// A column of 64-bit integers, and the sketch that they are added to.
#[derive(BpfContext)]
#[bpf(name = "sketch")]
#[repr(C)]
pub struct Sketch<'b> {
    values: ContextBytes<'b>,
    registers: ContextBytesMut<'b>,
}

/// Registers of a sketch: 2^10, for an error of some 3 %.
pub const REGISTERS: usize = 1 << 10;

/// `score(amount, hour)`, whose program may be replaced while queries run. Each batch is scored by one program.
#[derive(Clone)]
pub struct Score {
    signature: Signature,
    live: Arc<Live>,
}

struct Live {
    engine: Engine,
    hook: Hook<Rows<'static>, ()>,
    current: Mutex<Program<Rows<'static>, ()>>,
}

impl Score {
    /// The function that this object's program `score` is. Amounts above `large` cents are large.
    ///
    /// # Errors
    /// The object is malformed, or the program is refused: then the error says where, and why.
    pub fn load(engine: &Engine, object: &[u8], large: i64) -> std::result::Result<Self, Box<dyn Error + Send + Sync>> {
        Self::of(engine, load_score(engine, object, large)?)
    }

    /// The function that a loaded program is, however it was loaded.
    ///
    /// # Errors
    /// The program is another engine's, or there is no memory for a hook.
    pub fn of(
        engine: &Engine,
        program: Program<Rows<'static>, ()>,
    ) -> std::result::Result<Self, Box<dyn Error + Send + Sync>> {
        let hook = Hook::new(engine, HookPolicy::LastWins { empty: 1 })?;
        hook.attach(&program)?;
        let live = Live { engine: engine.clone(), hook, current: Mutex::new(program) };
        let arguments = vec![DataType::Int64, DataType::Int64];
        Ok(Score { signature: Signature::exact(arguments, Volatility::Immutable), live: Arc::new(live) })
    }

    /// Replaces the program, for batches that begin from now on.
    ///
    /// # Errors
    /// Returns the errors of [`Score::load`]. The old program stays.
    pub fn replace(&self, object: &[u8], large: i64) -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
        let program = load_score(&self.live.engine, object, large)?;
        let mut current = self.live.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.live.hook.replace(&current, &program)?;
        *current = program;
        Ok(())
    }
}

fn load_score(
    engine: &Engine,
    object: &[u8],
    large: i64,
) -> std::result::Result<Program<Rows<'static>, ()>, Box<dyn Error + Send + Sync>> {
    let mut object = Object::parse(object)?;
    object.set_global("large", &large.to_ne_bytes())?;
    let maps = MapSet::for_object(engine, &object)?;
    Ok(Linker::<()>::new(engine).load::<Rows>(&object, maps)?.program("score")?)
}

impl ScalarUDFImpl for Score {
    fn name(&self) -> &str {
        "score"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let [amount, hour] = &columns[..] else {
            return Err(exec_datafusion_err!("score takes two columns, not {}", columns.len()));
        };
        let (amount, hour) = (amount.as_primitive::<Int64Type>(), hour.as_primitive::<Int64Type>());
        let mut score = MutableBuffer::from_len_zeroed(amount.len() * size_of::<i64>());
        let run = |score: &mut [u8]| {
            let mut rows = Rows {
                amount: ContextBytes::new(amount.values().inner().as_slice())?,
                hour: ContextBytes::new(hour.values().inner().as_slice())?,
                score: ContextBytesMut::new(score)?,
            };
            self.live.hook.run_on(&mut rows)
        };
        succeeded("score", run(score.as_slice_mut()))?;
        let nulls = NullBuffer::union(amount.nulls(), hour.nulls());
        let score = Int64Array::new(ScalarBuffer::new(score.into(), 0, amount.len()), nulls);
        Ok(ColumnarValue::Array(Arc::new(score)))
    }
}

/// A program's own errors are results that are not 0.
fn succeeded(function: &str, result: std::result::Result<u64, bpf_runtime::RunError>) -> Result<()> {
    match result {
        Ok(0) => Ok(()),
        Ok(code) => Err(exec_datafusion_err!("{function}: its program returned {code}")),
        Err(error) => Err(exec_datafusion_err!("{function}: {error}")),
    }
}

impl fmt::Debug for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Score").finish_non_exhaustive()
    }
}

// One function is equal to itself only: two may have different programs.
impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.live, &other.live)
    }
}

impl Eq for Score {}

impl Hash for Score {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.live).hash(state);
    }
}

/// `about_distinct(column)`: HyperLogLog, by the programs `add` and `merge`.
#[derive(Clone)]
pub struct Distinct {
    signature: Signature,
    programs: Arc<Programs>,
}

struct Programs {
    add: Program<Sketch<'static>, ()>,
    merge: Program<Sketch<'static>, ()>,
}

impl Distinct {
    /// The function that this object's programs are.
    ///
    /// # Errors
    /// Returns the errors of [`Score::load`].
    pub fn load(engine: &Engine, object: &[u8]) -> std::result::Result<Self, Box<dyn Error + Send + Sync>> {
        let object = Object::parse(object)?;
        let instance = Linker::<()>::new(engine).load::<Sketch>(&object, MapSet::for_object(engine, &object)?)?;
        Ok(Self::of(instance.program("add")?, instance.program("merge")?))
    }

    /// The function that two loaded programs are, however they were loaded.
    pub fn of(add: Program<Sketch<'static>, ()>, merge: Program<Sketch<'static>, ()>) -> Self {
        let signature = Signature::exact(vec![DataType::Int64], Volatility::Immutable);
        Distinct { signature, programs: Arc::new(Programs { add, merge }) }
    }
}

impl AggregateUDFImpl for Distinct {
    fn name(&self) -> &str {
        "about_distinct"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Registers { programs: Arc::clone(&self.programs), bytes: vec![0; REGISTERS] }))
    }

    fn state_fields(&self, _: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new("registers", DataType::Binary, false))])
    }
}

impl fmt::Debug for Distinct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Distinct").finish_non_exhaustive()
    }
}

impl PartialEq for Distinct {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.programs, &other.programs)
    }
}

impl Eq for Distinct {}

impl Hash for Distinct {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.programs).hash(state);
    }
}

/// The sketch of one group, in one partition.
struct Registers {
    programs: Arc<Programs>,
    bytes: Vec<u8>,
}

impl Registers {
    fn run(&mut self, program: fn(&Programs) -> &Program<Sketch<'static>, ()>, values: &[u8]) -> Result<()> {
        let run = |registers: &mut [u8]| {
            let (values, registers) = (ContextBytes::new(values)?, ContextBytesMut::new(registers)?);
            program(&self.programs).run_on(&mut Sketch { values, registers })
        };
        succeeded("about_distinct", run(&mut self.bytes))
    }
}

impl fmt::Debug for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registers").finish_non_exhaustive()
    }
}

impl Accumulator for Registers {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let column = values[0].as_primitive::<Int64Type>();
        if column.null_count() == 0 {
            return self.run(|programs| &programs.add, column.values().inner().as_slice());
        }
        let known: ScalarBuffer<i64> = column.iter().flatten().collect();
        self.run(|programs| &programs.add, known.inner().as_slice())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for sketch in states[0].as_binary::<i32>().iter().flatten() {
            self.run(|programs| &programs.merge, sketch)?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Binary(Some(self.bytes.clone()))])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::UInt64(Some(estimate(&self.bytes))))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.bytes.capacity()
    }
}

/// Returns the cardinality that a sketch estimates (Flajolet and others, 2007). BPF has no floating point, so the host
/// computes it.
pub fn estimate(registers: &[u8]) -> u64 {
    let count = registers.len() as f64;
    let sum: f64 = registers.iter().map(|rank| 0.5f64.powi(i32::from(*rank))).sum();
    let raw = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
    let empty = registers.iter().filter(|rank| **rank == 0).count() as f64;
    let small = raw <= 2.5 * count && empty > 0.0;
    (if small { count * (count / empty).ln() } else { raw }).round() as u64
}
