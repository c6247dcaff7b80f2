//! What to do with each field of an object of known shape at a known path: looked up once per object, not per field.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;

use super::{Paths, Step};
use crate::index::number::PathNumber;
use crate::index::policy::{Coverage, Policy};
use crate::value::{Shape, ShapeNumber};

/// So many fields of plans are kept; beyond them plans are made anew each time.
const KEPT_FIELDS_MAX: usize = 1 << 20;

/// What to do with the fields of an object, by position.
pub(in crate::index) type Plan = [Field];

/// What to do with one field.
#[derive(Debug)]
pub(in crate::index) struct Field {
    /// Its path; none if it is not covered, or the dictionary is full.
    pub(in crate::index) path: Option<PathNumber>,
    pub(in crate::index) coverage: Coverage,
    /// The path of its elements, once that was asked for; until then the root.
    element: AtomicU32,
}

/// The plans made so far, for one policy.
#[derive(Debug, Default)]
pub(super) struct Plans {
    policy: u64,
    by_shape: HashMap<(PathNumber, ShapeNumber), Arc<Plan>>,
    field_count: usize,
}

impl Field {
    /// The path of the field `name` of the object at `parent`, and what the policy wants of it.
    pub(in crate::index) fn of(paths: &Paths, policy: &Policy, parent: PathNumber, name: &str) -> Field {
        Self::below(paths, policy, &paths.names(parent), parent, name)
    }

    fn below(paths: &Paths, policy: &Policy, names: &[String], parent: PathNumber, name: &str) -> Field {
        let line: Vec<&str> = names.iter().map(String::as_str).chain([name]).collect();
        let coverage = policy.coverage(line.into_iter());
        let is_wanted = coverage.here || coverage.below;
        let path = if is_wanted { paths.intern(parent, Step::Field(name)) } else { None };
        Field { path, coverage, element: AtomicU32::new(PathNumber::ROOT.0) }
    }

    /// The path of the elements of the array that this field is; none if the dictionary is full.
    pub(in crate::index) fn element(&self, paths: &Paths) -> Option<PathNumber> {
        let known = PathNumber(self.element.load(Ordering::Relaxed));
        if known != PathNumber::ROOT {
            return Some(known);
        }
        let element = paths.intern(self.path?, Step::Element)?;
        self.element.store(element.0, Ordering::Relaxed);
        Some(element)
    }
}

impl Paths {
    /// The plan for objects of this shape at `parent`. Costs one lookup; making it costs one for each field.
    pub(in crate::index) fn plan(
        &self,
        policy: &Policy,
        parent: PathNumber,
        number: ShapeNumber,
        shape: &Shape,
    ) -> Arc<Plan> {
        let plans = self.plans.read();
        if plans.policy == policy.identity()
            && let Some(plan) = plans.by_shape.get(&(parent, number))
        {
            return Arc::clone(plan);
        }
        drop(plans);
        let names = self.names(parent);
        let plan: Arc<Plan> = shape.names().map(|name| Field::below(self, policy, &names, parent, name)).collect();
        self.plans.write().keep(policy, (parent, number), &plan);
        plan
    }
}

impl Plans {
    fn keep(&mut self, policy: &Policy, key: (PathNumber, ShapeNumber), plan: &Arc<Plan>) {
        if self.policy != policy.identity() {
            *self = Plans { policy: policy.identity(), ..Plans::default() };
        }
        if self.field_count + plan.len() < KEPT_FIELDS_MAX && self.by_shape.insert(key, Arc::clone(plan)).is_none() {
            self.field_count += plan.len() + 1;
        }
    }
}
