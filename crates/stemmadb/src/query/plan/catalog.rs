//! The catalog: what the planner knows about the indexed paths and the declared indexes. Planning does no I/O.

use crate::index::{DeclaredIndexes, PathNumber, Paths, Policy, Step};
use crate::query::source::IndexReader;
use crate::value::Path;

/// The path dictionary, the index policy, and the declared indexes.
#[derive(Clone, Copy)]
pub(crate) struct Catalog<'a> {
    pub(crate) paths: &'a Paths,
    pub(crate) policy: &'a Policy,
    pub(crate) declared: &'a DeclaredIndexes,
}

/// Identifies a state of the catalog; a plan is valid while it is unchanged. The policy never changes for a given
/// dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CatalogVersion {
    paths: u64,
    path_count: usize,
    /// Generation of the declared indexes.
    generation: u64,
}

impl CatalogVersion {
    pub(crate) fn new(paths: &Paths, generation: u64) -> Self {
        CatalogVersion { paths: paths.identity(), path_count: paths.len(), generation }
    }
}

impl<'a> Catalog<'a> {
    /// The version of this catalog.
    pub(crate) fn state(&self) -> CatalogVersion {
        CatalogVersion::new(self.paths, self.declared.generation)
    }

    /// The catalog of a snapshot.
    pub(crate) fn of(source: &'a impl IndexReader) -> Self {
        Catalog { paths: source.paths(), policy: source.policy(), declared: source.declared() }
    }
}

/// One interpretation of a path: each decimal name is either a field name or an array index.
#[derive(Clone, Debug)]
pub(crate) struct PathReading {
    /// The path in the dictionary, or `None` if no document has it.
    pub(crate) number: Option<PathNumber>,
    /// Whether it passes through an array.
    pub(crate) crosses: bool,
}

/// All interpretations of a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathReadings {
    /// The interpretations; the one without arrays first.
    pub(crate) readings: Vec<PathReading>,
    /// The paths before each array index that are reached without crossing another array. Every document for which an
    /// interpretation through arrays can matter has an array at one of these.
    pub(crate) arrays: Vec<PathNumber>,
    /// Whether further interpretations were omitted; each of them crosses an array.
    pub(crate) is_cut: bool,
    /// Whether the policy excludes a path that an interpretation needs.
    pub(crate) is_excluded: bool,
}

/// The largest number of listed interpretations of one path.
const READINGS_MAX: usize = 8;

impl Catalog<'_> {
    /// Whether every field on the path is indexed; `names` omits array indexes.
    pub(crate) fn covers(&self, names: &[&str]) -> bool {
        // A name that no path can have (an empty one) is checked on documents.
        Path::new(names.iter().copied()).is_ok_and(|path| self.policy.covers(&path))
    }

    /// The path of field `name` below `parent`, if any document has it.
    pub(crate) fn field(&self, parent: PathNumber, name: &str) -> Option<PathNumber> {
        self.paths.child(parent, Step::Field(name))
    }

    /// The path of the elements of `array`, if any document has some.
    pub(crate) fn element(&self, array: PathNumber) -> Option<PathNumber> {
        self.paths.child(array, Step::Element)
    }

    /// Lists the interpretations of `names` below `base`, whose path is `base_names`. `base_crosses` says whether
    /// `base` is within an array.
    pub(crate) fn readings(
        &self,
        base: Option<PathNumber>,
        base_names: &[&str],
        base_crosses: bool,
        names: &[&str],
    ) -> PathReadings {
        let mut found = PathReadings::default();
        let mut open = vec![(PathReading { number: base, crosses: base_crosses }, base_names.to_vec())];
        for (at, name) in names.iter().copied().enumerate() {
            let mut next = Vec::with_capacity(open.len());
            for (reading, fields) in open {
                // A document is never an array, so a top-level name is not an array index.
                let may_be_array = is_position(name) && (at > 0 || base_crosses);
                if may_be_array {
                    self.step_into_array(&reading, &fields, &mut next, &mut found);
                }
                let mut fields = fields;
                fields.push(name);
                let number = reading.number.and_then(|parent| self.field(parent, name));
                next.push((PathReading { number, ..reading }, fields));
            }
            next.sort_by_key(|(reading, _)| reading.crosses);
            if next.len() > READINGS_MAX {
                next.truncate(READINGS_MAX);
                found.is_cut = true;
            }
            open = next;
        }
        for (reading, fields) in open {
            found.is_excluded |= !self.covers(&fields);
            found.readings.push(reading);
        }
        found
    }

    fn step_into_array<'n>(
        &self,
        reading: &PathReading,
        fields: &[&'n str],
        next: &mut Vec<(PathReading, Vec<&'n str>)>,
        found: &mut PathReadings,
    ) {
        let Some(array) = reading.number else {
            // No document has this path, unless it is not indexed.
            found.is_excluded |= !self.covers(fields);
            return;
        };
        if !reading.crosses {
            found.is_excluded |= !self.covers(fields);
            found.arrays.push(array);
        }
        next.push((PathReading { number: self.element(array), crosses: true }, fields.to_vec()));
    }
}

/// Whether a name can also be an array index.
pub(crate) fn is_position(name: &str) -> bool {
    let is_decimal = name.bytes().all(|byte| byte.is_ascii_digit());
    is_decimal && !name.is_empty() && (name == "0" || !name.starts_with('0'))
}
