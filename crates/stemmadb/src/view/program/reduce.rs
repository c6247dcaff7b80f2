//! The reducer of program views. Besides the program's own reduction it always counts rows, so that the offset of a row
//! is found without a scan.

use std::sync::Arc;

use super::adapter::{decode_row, split_row};
use super::ranked::{FirstLastFold, RankFold};
use super::stats::StatsFold;
use super::sum::SumFold;
use super::{ProgramReducer, ProgramRow, ViewProgram, keys};
use crate::Result;
use crate::tree::Direction;
use crate::value::{Object, Value};
use crate::varint;
use crate::view::reduce::{
    BuiltIn, Fold, FunctionFold, ReduceFunctions, Reducer, Sketch, decode_function_result, row_value,
};

/// Counts rows, and folds them with the program's reducer.
pub(super) struct CountingReducer {
    program: Arc<dyn ViewProgram>,
    reducer: ProgramReducer,
    /// For [`ProgramReducer::Typed`].
    typed: Option<BuiltIn>,
}

impl CountingReducer {
    pub(super) fn new(program: Arc<dyn ViewProgram>) -> Self {
        let reducer = program.reducer();
        let typed = match reducer {
            ProgramReducer::Typed(reduction) => reduction.built_in(),
            _ => None,
        };
        CountingReducer { program, reducer, typed }
    }
}

/// Splits a partial reduction into its row count and the program's reduction.
fn split_partial(mut partial: &[u8]) -> Result<(u64, &[u8])> {
    let count = if partial.is_empty() { 0 } else { varint::read(&mut partial)? };
    Ok((count, partial))
}

/// The row count of a partial reduction.
pub(super) fn row_count_of(partial: &[u8]) -> Result<u64> {
    split_partial(partial).map(|(count, _)| count)
}

impl Reducer for CountingReducer {
    fn name(&self) -> &str {
        "program"
    }

    fn begin(&self) -> Box<dyn Fold + '_> {
        let inner: Option<Box<dyn Fold + '_>> = match self.reducer {
            ProgramReducer::None | ProgramReducer::Count => None,
            ProgramReducer::Sum => Some(Box::new(SumFold::default())),
            ProgramReducer::Stats => Some(Box::new(StatsFold::default())),
            ProgramReducer::ApproxCountDistinct => Some(Box::new(DistinctFold(Sketch::default()))),
            ProgramReducer::First => Some(Box::new(FirstLastFold::new(false))),
            ProgramReducer::Last => Some(Box::new(FirstLastFold::new(true))),
            ProgramReducer::Top(count) => Some(Box::new(RankFold::new(count, true))),
            ProgramReducer::Bottom(count) => Some(Box::new(RankFold::new(count, false))),
            ProgramReducer::Typed(_) => self.typed.as_ref().map(BuiltIn::begin),
            ProgramReducer::Custom => Some(Box::new(FunctionFold::new(ProgramFunctions(&*self.program)))),
        };
        Box::new(CountingFold { is_custom: self.reducer == ProgramReducer::Custom, count: 0, inner })
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        let (count, inner) = split_partial(partial)?;
        let result = match self.reducer {
            ProgramReducer::None => return Ok(Value::Null),
            ProgramReducer::Count => return Ok(count.into()),
            ProgramReducer::ApproxCountDistinct => return Ok(Sketch::decode(inner)?.estimate().into()),
            ProgramReducer::First | ProgramReducer::Last => return row_value(inner),
            ProgramReducer::Top(_) | ProgramReducer::Bottom(_) => return Ok(RankFold::values(inner)?.into()),
            ProgramReducer::Typed(_) => {
                return self.typed.as_ref().map_or(Ok(Value::Null), |reducer| reducer.result(inner));
            }
            ProgramReducer::Custom => return decode_function_result::<ProgramFunctions<'_>>(inner),
            ProgramReducer::Sum => SumFold::result(inner)?,
            ProgramReducer::Stats => StatsFold::result(inner)?,
        };
        // CouchDB reports the error in place of the value, not as a failed request.
        Ok(result.unwrap_or_else(|why| {
            let mut object = Object::new();
            object.insert("error", "builtin_reduce_error");
            object.insert("reason", why);
            object.into()
        }))
    }

    fn deciding_row(&self) -> Option<Direction> {
        match self.reducer {
            ProgramReducer::First => Some(Direction::Ascending),
            ProgramReducer::Last => Some(Direction::Descending),
            _ => None,
        }
    }
}

struct CountingFold<'a> {
    is_custom: bool,
    count: u64,
    inner: Option<Box<dyn Fold + 'a>>,
}

impl Fold for CountingFold<'_> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.count += 1;
        match &mut self.inner {
            None => Ok(()),
            // Custom functions get keys, ids and values.
            Some(inner) if self.is_custom => inner.row(key, value),
            Some(inner) => {
                let (key, value) = split_row(value)?;
                inner.row(key, value)
            }
        }
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        let (count, part) = split_partial(partial)?;
        self.count = self.count.saturating_add(count);
        match &mut self.inner {
            Some(inner) if count > 0 => inner.part(part),
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        if self.count > 0 {
            varint::write(self.count, &mut partial);
            if let Some(inner) = self.inner {
                partial.extend_from_slice(&inner.finish()?);
            }
        }
        Ok(partial)
    }
}

/// Approximate number of distinct keys.
struct DistinctFold(Sketch);

impl Fold for DistinctFold {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.row(key, value)
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.0.part(partial)
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        Box::new(self.0).finish()
    }
}

/// The program's custom functions.
struct ProgramFunctions<'a>(&'a dyn ViewProgram);

impl ReduceFunctions for ProgramFunctions<'_> {
    type Row = ProgramRow;
    // The row count already distinguishes parts from empty ones.
    const PARTIAL_PREFIX: &'static [u8] = &[];

    fn row(&self, key: &[u8], value: &[u8]) -> Result<ProgramRow> {
        let (emitted, value) = decode_row(value)?;
        Ok(ProgramRow { id: keys::id_of(key, &emitted, self.0.is_partitioned()), key: emitted, value })
    }

    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        self.0.reduce(rows)
    }

    fn rereduce(&self, parts: Vec<Value>) -> Result<Value> {
        self.0.rereduce(&parts)
    }
}
