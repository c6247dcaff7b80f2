//! Cached indexing plans: the path and coverage of every field of an object, looked up once per shape and parent path
//! instead of once per field.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;

use super::{Paths, Step};
use crate::index::number::PathNumber;
use crate::index::policy::{Coverage, Policy};
use crate::value::{Shape, ShapeNumber};

/// The maximum number of fields in cached plans. Further plans are not cached.
const CACHED_FIELDS_MAX: usize = 1 << 20;

/// The plan of an object: a [`FieldPlan`] for each field, by position.
pub(in crate::index) type ObjectPlan = [FieldPlan];

/// How one field is indexed.
#[derive(Debug)]
pub(in crate::index) struct FieldPlan {
    /// The path of the field; `None` if it is not covered or the dictionary is full.
    pub(in crate::index) path: Option<PathNumber>,
    pub(in crate::index) coverage: Coverage,
    /// The path of the elements of the field's array. The root until it is requested for the first time.
    element: AtomicU32,
}

/// The cached plans of one policy.
#[derive(Debug, Default)]
pub(super) struct PlanCache {
    policy: u64,
    by_shape: HashMap<(PathNumber, ShapeNumber), Arc<ObjectPlan>>,
    field_count: usize,
}

impl FieldPlan {
    /// The plan of the field `name` of the object at `parent`.
    pub(in crate::index) fn new(paths: &Paths, policy: &Policy, parent: PathNumber, name: &str) -> FieldPlan {
        Self::with_parent_names(paths, policy, &paths.names(parent), parent, name)
    }

    fn with_parent_names(
        paths: &Paths,
        policy: &Policy,
        names: &[String],
        parent: PathNumber,
        name: &str,
    ) -> FieldPlan {
        let names: Vec<&str> = names.iter().map(String::as_str).chain([name]).collect();
        let coverage = policy.coverage(names.into_iter());
        let is_covered = coverage.covers_self || coverage.covers_below;
        let path = if is_covered { paths.intern(parent, Step::Field(name)) } else { None };
        FieldPlan { path, coverage, element: AtomicU32::new(PathNumber::ROOT.0) }
    }

    /// The path of the elements of this field, which is an array; `None` if the dictionary is full.
    pub(in crate::index) fn element(&self, paths: &Paths) -> Option<PathNumber> {
        let cached = PathNumber(self.element.load(Ordering::Relaxed));
        if cached != PathNumber::ROOT {
            return Some(cached);
        }
        let element = paths.intern(self.path?, Step::Element)?;
        self.element.store(element.0, Ordering::Relaxed);
        Some(element)
    }
}

impl Paths {
    /// The plan of objects of this shape at `parent`. Costs one lookup if it is cached, else one lookup per field.
    pub(in crate::index) fn plan(
        &self,
        policy: &Policy,
        parent: PathNumber,
        number: ShapeNumber,
        shape: &Shape,
    ) -> Arc<ObjectPlan> {
        let plans = self.plans.read();
        if plans.policy == policy.identity()
            && let Some(plan) = plans.by_shape.get(&(parent, number))
        {
            return Arc::clone(plan);
        }
        drop(plans);
        let names = self.names(parent);
        let plan: Arc<ObjectPlan> =
            shape.names().map(|name| FieldPlan::with_parent_names(self, policy, &names, parent, name)).collect();
        self.plans.write().insert(policy, (parent, number), &plan);
        plan
    }
}

impl PlanCache {
    fn insert(&mut self, policy: &Policy, key: (PathNumber, ShapeNumber), plan: &Arc<ObjectPlan>) {
        if self.policy != policy.identity() {
            *self = PlanCache { policy: policy.identity(), ..PlanCache::default() };
        }
        if self.field_count + plan.len() < CACHED_FIELDS_MAX && self.by_shape.insert(key, Arc::clone(plan)).is_none() {
            self.field_count += plan.len() + 1;
        }
    }
}
