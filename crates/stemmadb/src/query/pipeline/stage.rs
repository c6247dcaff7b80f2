//! The stages of a pipeline.

use super::expression::Expression;
use crate::query::language::projection::Fields;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::value::{Path, PathStep};

/// One stage, with what messages call it: `stage 2 ($group)`.
#[derive(Clone, Debug)]
pub(super) struct NamedStage {
    pub(super) label: String,
    /// The operator as it was written.
    pub(super) operator: String,
    pub(super) stage: Stage,
}

/// A stage: takes rows and returns others.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    Match(Selector),
    Unwind(Unwind),
    Group(Group),
    /// `$project` with the fields to return, and those to compute.
    Include {
        fields: Option<Fields>,
        computed: Vec<(Path, Expression)>,
    },
    /// `$unset`, and `$project` with the fields to leave out.
    Exclude(Vec<Vec<PathStep>>),
    /// `$addFields` and `$set`.
    Compute(Vec<(Path, Expression)>),
    Sort(Sort),
    Limit(u64),
    Skip(u64),
    /// The number of rows, under this name.
    Count(String),
    /// `$replaceRoot` and `$replaceWith`.
    Replace(Expression),
    Lookup(Lookup),
}

/// `$unwind`: one row for each element of an array.
#[derive(Clone, Debug)]
pub(super) struct Unwind {
    pub(super) path: Path,
    /// Where the position of the element is put.
    pub(super) position: Option<Path>,
    /// Whether rows without elements are kept.
    pub(super) keeps_empty: bool,
}

/// `$group`: one row for each value of the key.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) key: Expression,
    pub(super) fields: Vec<(String, Accumulator, Expression)>,
}

/// A function of the values of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accumulator {
    Count,
    Sum,
    Average,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
}

/// `$lookup`: the documents of the database whose value at one path equals the row's value at another.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    pub(super) local: Path,
    pub(super) foreign: String,
    /// Which documents are looked up.
    pub(super) selector: Selector,
    /// Where the documents are put, as an array.
    pub(super) output: Path,
}

impl Stage {
    /// How the stage runs, for explanations.
    pub(super) fn execution(&self) -> &'static str {
        match self {
            Stage::Group(_) => "collects groups",
            Stage::Sort(_) => "collects and sorts rows",
            Stage::Count(_) => "counts rows",
            Stage::Lookup(_) => "streams rows, looks up documents in batches",
            _ => "streams rows",
        }
    }
}
