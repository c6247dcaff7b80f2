//! The reducer of a program's view: it counts rows, whatever else it does, so that a row's place is known at once.

use std::sync::Arc;

use super::mapping::{divide, read};
use super::ranked::{EndFold, RankFold};
use super::stats::StatsFold;
use super::sum::SumFold;
use super::{ProgramReducer, ProgramRow, ViewProgram, keys};
use crate::Result;
use crate::value::{Object, Value, varint};
use crate::view::reduce::{BuiltIn, Called, Fold, Functions, Reducer, Sketch, called_result, row_value};

/// Counts rows, and folds them by the program's reducer.
pub(super) struct Counted {
    program: Arc<dyn ViewProgram>,
    reducer: ProgramReducer,
    /// For [`ProgramReducer::Typed`].
    typed: Option<BuiltIn>,
}

impl Counted {
    pub(super) fn new(program: Arc<dyn ViewProgram>) -> Self {
        let reducer = program.reducer();
        let typed = match reducer {
            ProgramReducer::Typed(reduction) => reduction.built_in(),
            _ => None,
        };
        Counted { program, reducer, typed }
    }
}

/// How many rows a partial reduction is of, and what they come to.
fn divide_partial(mut partial: &[u8]) -> Result<(u64, &[u8])> {
    let count = if partial.is_empty() { 0 } else { varint::read(&mut partial)? };
    Ok((count, partial))
}

/// How many rows a partial reduction is of.
pub(super) fn count_of(partial: &[u8]) -> Result<u64> {
    divide_partial(partial).map(|(count, _)| count)
}

impl Reducer for Counted {
    fn name(&self) -> &str {
        "program"
    }

    fn begin(&self) -> Box<dyn Fold + '_> {
        let inner: Option<Box<dyn Fold + '_>> = match self.reducer {
            ProgramReducer::None | ProgramReducer::Count => None,
            ProgramReducer::Sum => Some(Box::new(SumFold::default())),
            ProgramReducer::Stats => Some(Box::new(StatsFold::default())),
            ProgramReducer::ApproxCountDistinct => Some(Box::new(Distinct(Sketch::default()))),
            ProgramReducer::First => Some(Box::new(EndFold::new(false))),
            ProgramReducer::Last => Some(Box::new(EndFold::new(true))),
            ProgramReducer::Top(count) => Some(Box::new(RankFold::new(count, true))),
            ProgramReducer::Bottom(count) => Some(Box::new(RankFold::new(count, false))),
            ProgramReducer::Typed(_) => self.typed.as_ref().map(BuiltIn::begin),
            ProgramReducer::Custom => Some(Box::new(Called::new(OwnFunctions(&*self.program)))),
        };
        Box::new(CountedFold { is_called: self.reducer == ProgramReducer::Custom, count: 0, inner })
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        let (count, inner) = divide_partial(partial)?;
        let told = match self.reducer {
            ProgramReducer::None => return Ok(Value::Null),
            ProgramReducer::Count => return Ok(count.into()),
            ProgramReducer::ApproxCountDistinct => return Ok(Sketch::decode(inner)?.estimate().into()),
            ProgramReducer::First | ProgramReducer::Last => return row_value(inner),
            ProgramReducer::Top(_) | ProgramReducer::Bottom(_) => return Ok(RankFold::values(inner)?.into()),
            ProgramReducer::Typed(_) => {
                return self.typed.as_ref().map_or(Ok(Value::Null), |reducer| reducer.result(inner));
            }
            ProgramReducer::Custom => return called_result::<OwnFunctions<'_>>(inner),
            ProgramReducer::Sum => SumFold::result(inner)?,
            ProgramReducer::Stats => StatsFold::result(inner)?,
        };
        // As CouchDB tells it: in the row, not instead of it.
        Ok(told.unwrap_or_else(|why| {
            let mut object = Object::new();
            object.insert("error", "builtin_reduce_error");
            object.insert("reason", why);
            object.into()
        }))
    }
}

struct CountedFold<'a> {
    is_called: bool,
    count: u64,
    inner: Option<Box<dyn Fold + 'a>>,
}

impl Fold for CountedFold<'_> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.count += 1;
        match &mut self.inner {
            None => Ok(()),
            // It looks at keys, ids and values.
            Some(inner) if self.is_called => inner.row(key, value),
            Some(inner) => {
                let (key, value) = divide(value)?;
                inner.row(key, value)
            }
        }
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        let (count, part) = divide_partial(partial)?;
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

/// About how many distinct keys.
struct Distinct(Sketch);

impl Fold for Distinct {
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

/// The program's own functions.
struct OwnFunctions<'a>(&'a dyn ViewProgram);

impl Functions for OwnFunctions<'_> {
    type Row = ProgramRow;
    // The number of rows tells parts apart.
    const MARK: &'static [u8] = &[];

    fn row(&self, key: &[u8], value: &[u8]) -> Result<ProgramRow> {
        let (emitted, value) = read(value)?;
        Ok(ProgramRow { id: keys::id_of(key, &emitted), key: emitted, value })
    }

    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        self.0.reduce(rows)
    }

    fn rereduce(&self, parts: Vec<Value>) -> Result<Value> {
        self.0.rereduce(&parts)
    }
}
