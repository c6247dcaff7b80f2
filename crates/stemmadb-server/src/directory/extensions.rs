//! Values that other modules attach to an open database, one of each type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// Values that other modules attach to an open database, one of each type, so that this module need not know these
/// types.
#[derive(Default)]
pub(super) struct Extensions(RwLock<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Returns the value of type `T`, created by default on first use.
    pub(super) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let id = TypeId::of::<T>();
        let known = self.0.read().get(&id).cloned();
        let value = known.unwrap_or_else(|| self.0.write().entry(id).or_insert_with(|| Arc::new(T::default())).clone());
        value.downcast().expect("a value is stored under the id of its type")
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let extensions = Extensions::default();
        *extensions.get::<Mutex<u32>>().lock() = 7;
        extensions.get::<Mutex<String>>().lock().push('x');
        assert_eq!(*extensions.get::<Mutex<u32>>().lock(), 7);
        assert_eq!(*extensions.get::<Mutex<String>>().lock(), "x");
    }
}
