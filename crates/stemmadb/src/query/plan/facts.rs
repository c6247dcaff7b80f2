//! What the planner may know: which paths there are, which of them are indexed, and which indexes are declared. No I/O.

use crate::index::{DeclaredIndexes, PathNumber, Paths, Policy, Step};
use crate::query::source::Source;
use crate::value::Path;

/// The dictionary and the policy of the index, and the declared indexes.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) paths: &'a Paths,
    pub(crate) policy: &'a Policy,
    pub(crate) declared: &'a DeclaredIndexes,
}

/// Which state of them facts are; a plan holds while it is the same. The policy of an index is that of its dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FactsState {
    paths: u64,
    path_count: usize,
    /// Of the declared indexes.
    generation: u64,
}

impl FactsState {
    pub(crate) fn new(paths: &Paths, generation: u64) -> Self {
        FactsState { paths: paths.identity(), path_count: paths.len(), generation }
    }
}

impl<'a> Facts<'a> {
    /// Which state of them these are.
    pub(crate) fn state(&self) -> FactsState {
        FactsState::new(self.paths, self.declared.generation)
    }

    /// What is known of a snapshot.
    pub(crate) fn of(source: &'a impl Source) -> Self {
        Facts { paths: source.paths(), policy: source.policy(), declared: source.declared() }
    }
}

/// One way of reading a path: each decimal name is a field's, or a position in an array.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// The path in the dictionary; none if no document has it.
    pub(crate) number: Option<PathNumber>,
    /// Whether it goes through an array.
    pub(crate) crosses: bool,
}

/// All ways of reading a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways {
    /// The ways; the one without arrays first.
    pub(crate) ways: Vec<Way>,
    /// The paths before each position in an array, reached without crossing another: documents for which any way that
    /// crosses can matter have an array at one of these.
    pub(crate) arrays: Vec<PathNumber>,
    /// Whether there are more ways than are worth listing: any that is not listed crosses an array.
    pub(crate) is_cut: bool,
    /// Whether the policy leaves out something these ways need.
    pub(crate) is_excluded: bool,
}

/// How many ways of reading one path are listed.
const WAYS_MAX: usize = 8;

impl Facts<'_> {
    /// Whether every field on the way is indexed, given the names without positions in arrays.
    pub(crate) fn covers(&self, names: &[&str]) -> bool {
        // A name that no path can have (an empty one) is answered from documents.
        Path::new(names.iter().copied()).is_ok_and(|path| self.policy.covers(&path))
    }

    /// The field `name` at `parent`, if any document has it.
    pub(crate) fn field(&self, parent: PathNumber, name: &str) -> Option<PathNumber> {
        self.paths.child(parent, Step::Field(name))
    }

    /// The elements at `array`, if any document has some.
    pub(crate) fn element(&self, array: PathNumber) -> Option<PathNumber> {
        self.paths.child(array, Step::Element)
    }

    /// The ways of reading `names` below `base`, which is at the path `base_names`; `base_crosses` if it is itself
    /// within an array.
    pub(crate) fn ways(
        &self,
        base: Option<PathNumber>,
        base_names: &[&str],
        base_crosses: bool,
        names: &[&str],
    ) -> Ways {
        let mut found = Ways::default();
        let mut open = vec![(Way { number: base, crosses: base_crosses }, base_names.to_vec())];
        for (at, name) in names.iter().copied().enumerate() {
            let mut next = Vec::with_capacity(open.len());
            for (way, fields) in open {
                // A document is never an array, so its own names are no positions.
                let may_be_array = is_position(name) && (at > 0 || base_crosses);
                if may_be_array {
                    self.step_into_array(&way, &fields, &mut next, &mut found);
                }
                let mut fields = fields;
                fields.push(name);
                let number = way.number.and_then(|parent| self.field(parent, name));
                next.push((Way { number, ..way }, fields));
            }
            next.sort_by_key(|(way, _)| way.crosses);
            if next.len() > WAYS_MAX {
                next.truncate(WAYS_MAX);
                found.is_cut = true;
            }
            open = next;
        }
        for (way, fields) in open {
            found.is_excluded |= !self.covers(&fields);
            found.ways.push(way);
        }
        found
    }

    fn step_into_array<'n>(
        &self,
        way: &Way,
        fields: &[&'n str],
        next: &mut Vec<(Way, Vec<&'n str>)>,
        found: &mut Ways,
    ) {
        let Some(array) = way.number else {
            // No document has this path, unless it is not indexed.
            found.is_excluded |= !self.covers(fields);
            return;
        };
        if !way.crosses {
            found.is_excluded |= !self.covers(fields);
            found.arrays.push(array);
        }
        next.push((Way { number: self.element(array), crosses: true }, fields.to_vec()));
    }
}

/// Whether a name also is a position in an array.
pub(crate) fn is_position(name: &str) -> bool {
    let is_decimal = name.bytes().all(|byte| byte.is_ascii_digit());
    is_decimal && !name.is_empty() && (name == "0" || !name.starts_with('0'))
}
