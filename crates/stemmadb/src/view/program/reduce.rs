//! The reducer of a program's view: it counts rows, whatever else it does, so that a row's place is known at once.

use std::sync::Arc;

use super::mapping::{divide, read};
use super::stats::StatsFold;
use super::sum::SumFold;
use super::{ProgramReducer, ProgramRow, ViewProgram, keys};
use crate::Result;
use crate::value::{Object, Value, varint};
use crate::view::reduce::{Fold, Reducer, Sketch, row_value, stored_value};

/// Rows or parts given to a function at once.
const ROWS_MAX: usize = 1024;

/// Counts rows, and folds them by the program's reducer.
pub(super) struct Counted {
    program: Arc<dyn ViewProgram>,
    reducer: ProgramReducer,
}

impl Counted {
    pub(super) fn new(program: Arc<dyn ViewProgram>) -> Self {
        Counted { reducer: program.reducer(), program }
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
            ProgramReducer::Custom => {
                Some(Box::new(Called { program: &*self.program, rows: Vec::new(), parts: Vec::new() }))
            }
        };
        Box::new(CountedFold { is_called: self.reducer == ProgramReducer::Custom, count: 0, inner })
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        let (count, inner) = divide_partial(partial)?;
        let told = match self.reducer {
            ProgramReducer::None => return Ok(Value::Null),
            ProgramReducer::Count => return Ok(count.into()),
            ProgramReducer::ApproxCountDistinct => return Ok(Sketch::decode(inner)?.estimate().into()),
            ProgramReducer::Custom => return row_value(inner),
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

/// Rows and parts on their way to the program's functions.
struct Called<'a> {
    program: &'a dyn ViewProgram,
    rows: Vec<ProgramRow>,
    parts: Vec<Value>,
}

impl Called<'_> {
    fn fold_rows(&mut self) -> Result<()> {
        if !self.rows.is_empty() {
            let part = self.program.reduce(&self.rows)?;
            self.rows.clear();
            self.parts.push(part);
        }
        if self.parts.len() >= ROWS_MAX {
            let whole = self.program.rereduce(&self.parts)?;
            self.parts = vec![whole];
        }
        Ok(())
    }
}

impl Fold for Called<'_> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (emitted, value) = read(value)?;
        self.rows.push(ProgramRow { id: keys::id_of(key, &emitted), key: emitted, value });
        if self.rows.len() >= ROWS_MAX { self.fold_rows() } else { Ok(()) }
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.fold_rows()?;
        self.parts.push(row_value(partial)?);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        self.fold_rows()?;
        let whole = match self.parts.len() {
            0 => return Ok(Vec::new()),
            1 => self.parts.pop().unwrap_or(Value::Null),
            _ => self.program.rereduce(&self.parts)?,
        };
        Ok(stored_value(&whole))
    }
}
