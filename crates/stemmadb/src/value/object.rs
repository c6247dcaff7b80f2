//! A JSON object: fields in insertion order with unique names.
//!
//! Invariants: names are unique. An object of more than [`INDEX_FROM`] fields has a hash index, and the index maps
//! exactly the names of its fields to their positions. Smaller objects are searched linearly, which is faster at that
//! size.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use compact_str::CompactString;
use hashbrown::HashTable;

use super::Value;

/// Objects of this many fields or fewer have no index.
pub(crate) const INDEX_FROM: usize = 24;

/// A field name. Short names, which most are, are stored inline.
pub(crate) type Name = CompactString;

/// A JSON object: fields in insertion order with unique names.
///
/// `==` is exact: objects with the same fields in a different order are not equal.
#[derive(Default)]
pub struct Object {
    fields: Vec<(Name, Value)>,
    index: Option<Box<NameIndex>>,
}

impl Object {
    /// An object without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// An object without fields and with capacity for `count`.
    pub fn with_capacity(count: usize) -> Self {
        Object { fields: Vec::with_capacity(count), index: None }
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether the object has no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The value of the field `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.position(name).map(|at| &self.fields[at].1)
    }

    /// A mutable reference to the value of the field `name`.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.position(name).map(|at| &mut self.fields[at].1)
    }

    /// Whether the object has a field `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// Sets the field `name` and returns its previous value. An existing field keeps its position; a new one goes last.
    pub fn insert(&mut self, name: impl AsRef<str>, value: impl Into<Value>) -> Option<Value> {
        let (name, value) = (name.as_ref(), value.into());
        if let Some(at) = self.position(name) {
            return Some(std::mem::replace(&mut self.fields[at].1, value));
        }
        self.append(name.into(), value);
        None
    }

    /// Removes the field `name` and returns its value, keeping the order of the others. Costs a move of the later
    /// fields.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.position(name)?;
        let (_, value) = self.fields.remove(at);
        self.reindex();
        Some(value)
    }

    /// Keeps only the fields for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Value) -> bool) {
        self.fields.retain_mut(|(name, value)| keep(name, value));
        self.reindex();
    }

    /// The fields in order.
    pub fn iter(&self) -> Fields<'_> {
        Fields(self.fields.iter())
    }

    /// The names in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// The values in order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &Value> + Clone {
        self.fields.iter().map(|(_, value)| value)
    }

    /// Mutable references to the values in order.
    pub fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Value> {
        self.fields.iter_mut().map(|(_, value)| value)
    }

    /// An object of fields whose names are known to be unique, with their index if they need one.
    pub(crate) fn from_unique(fields: Vec<(Name, Value)>, index: Option<Box<NameIndex>>) -> Self {
        debug_assert_eq!(index.is_some(), fields.len() > INDEX_FROM, "exactly the large objects have an index");
        debug_assert!(
            index.as_ref().is_none_or(|index| index.slots.len() == fields.len()),
            "the index of an object has one slot for each field"
        );
        Object { fields, index }
    }

    fn position(&self, name: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.position(name, &self.fields),
            None => self.fields.iter().position(|(field, _)| field == name),
        }
    }

    fn append(&mut self, name: Name, value: Value) {
        self.fields.push((name, value));
        match &mut self.index {
            Some(index) => index.add_last(&self.fields),
            None => self.reindex(),
        }
    }

    fn reindex(&mut self) {
        self.index = (self.fields.len() > INDEX_FROM).then(|| Box::new(NameIndex::build(&self.fields)));
    }
}

/// Hash index from the names of a large object to their positions. The hash is keyed, so hostile input cannot force
/// collisions.
#[derive(Clone)]
pub(crate) struct NameIndex {
    slots: HashTable<NameSlot>,
    hasher: RandomState,
}

/// The position of a field and part of its name's hash, so that growing the table and skipping other names in a probe
/// sequence do not touch the names.
#[derive(Clone, Copy)]
struct NameSlot {
    hash: u32,
    position: u32,
}

impl NameSlot {
    /// Spreads the 32 bits over 64, because the table uses both the top and the low bits.
    fn table_hash(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

impl NameIndex {
    /// The index of `fields`, whose names are unique.
    pub(crate) fn build(fields: &[(Name, Value)]) -> Self {
        let slots = HashTable::with_capacity(fields.len() + 1);
        let mut index = NameIndex { slots, hasher: RandomState::new() };
        for count in 1..=fields.len() {
            index.add_last(&fields[..count]);
        }
        index
    }

    /// Adds the last of `fields`. The index already has the others.
    pub(crate) fn add_last(&mut self, fields: &[(Name, Value)]) {
        let [others @ .., (name, _)] = fields else { return };
        debug_assert_eq!(self.slots.len(), others.len(), "the index of an object has one slot for each field");
        debug_assert!(self.position(name, others).is_none(), "the names of an object are unique");
        let slot = self.slot(name, others.len());
        self.slots.insert_unique(slot.table_hash(), slot, NameSlot::table_hash);
    }

    /// The position of `name`.
    pub(crate) fn position(&self, name: &str, fields: &[(Name, Value)]) -> Option<usize> {
        let probe = self.slot(name, 0);
        let matches = |slot: &NameSlot| slot.hash == probe.hash && fields[slot.position as usize].0 == name;
        self.slots.find(probe.table_hash(), matches).map(|slot| slot.position as usize)
    }

    fn slot(&self, name: &str, position: usize) -> NameSlot {
        NameSlot { hash: self.hasher.hash_one(name) as u32, position: position as u32 }
    }
}

/// Iterator over the fields of an [`Object`] in order.
#[derive(Clone)]
pub struct Fields<'a>(std::slice::Iter<'a, (Name, Value)>);

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a str, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(name, value)| (name.as_str(), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for Fields<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(name, value)| (name.as_str(), value))
    }
}

impl ExactSizeIterator for Fields<'_> {}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a str, &'a Value);
    type IntoIter = Fields<'a>;

    fn into_iter(self) -> Fields<'a> {
        self.iter()
    }
}

impl IntoIterator for Object {
    type Item = (String, Value);
    type IntoIter = IntoFields;

    fn into_iter(self) -> IntoFields {
        IntoFields(self.fields.into_iter())
    }
}

/// Owning iterator over the fields of an [`Object`] in order.
pub struct IntoFields(std::vec::IntoIter<(Name, Value)>);

impl Iterator for IntoFields {
    type Item = (String, Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(name, value)| (name.into_string(), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for IntoFields {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(name, value)| (name.into_string(), value))
    }
}

impl ExactSizeIterator for IntoFields {}

impl<N: AsRef<str>, V: Into<Value>> Extend<(N, V)> for Object {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, fields: I) {
        for (name, value) in fields {
            self.insert(name, value);
        }
    }
}

impl<N: AsRef<str>, V: Into<Value>> FromIterator<(N, V)> for Object {
    /// Of several fields with the same name, the last value is kept, at the position of the first.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut object = Object::new();
        object.extend(fields);
        object
    }
}

impl Clone for Object {
    fn clone(&self) -> Self {
        Object { fields: self.fields.clone(), index: self.index.clone() }
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl Eq for Object {}

impl Hash for Object {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fields.hash(state);
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_and_remove_keep_order_and_uniqueness() {
        for count in [0, 1, INDEX_FROM, INDEX_FROM + 1, 1000] {
            let mut object: Object = (0..count).map(|i| (format!("f{i}"), i as i64)).collect();
            assert_eq!(object.len(), count);
            assert!(
                object.names().eq((0..count).map(|i| format!("f{i}")).collect::<Vec<_>>().iter().map(|s| s.as_str()))
            );
            for i in 0..count {
                assert_eq!(object.insert(format!("f{i}"), 7), Some(Value::from(i as i64)));
            }
            assert_eq!(object.len(), count);
            for i in (0..count).step_by(2) {
                assert_eq!(object.remove(&format!("f{i}")), Some(Value::from(7)));
                assert_eq!(object.get(&format!("f{i}")), None);
            }
            for i in (1..count).step_by(2) {
                assert_eq!(object.get(&format!("f{i}")), Some(&Value::from(7)));
            }
        }
    }

    #[test]
    fn equality_depends_on_field_order() {
        let ab: Object = [("a", 1), ("b", 2)].into_iter().collect();
        let ba: Object = [("b", 2), ("a", 1)].into_iter().collect();
        assert_ne!(ab, ba);
        assert_eq!(ab, ab.clone());
    }
}
