//! A JSON object: fields in the order they were written, each name once.
//!
//! Invariants: names are unique; the index, which only objects of more than [`INDEX_FROM`] fields have, maps exactly the
//! names held. Small objects are searched directly, which is faster than hashing at that size.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use compact_str::CompactString;
use hashbrown::HashTable;

use super::Value;

/// Objects of this many fields or fewer have no index.
pub(crate) const INDEX_FROM: usize = 24;

/// A field's name: short ones, which most are, lie within.
pub(crate) type Name = CompactString;

/// A JSON object: fields in the order they were written, each name once.
///
/// `==` is exact, as a round trip is: the same fields in another order are another object.
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

    /// An object without fields and with room for `count`.
    pub fn with_capacity(count: usize) -> Self {
        Object { fields: Vec::with_capacity(count), index: None }
    }

    /// How many fields it has.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether it has no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The value of the field `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.position(name).map(|at| &self.fields[at].1)
    }

    /// The value of the field `name`, to change it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.position(name).map(|at| &mut self.fields[at].1)
    }

    /// Whether there is a field `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// Sets the field `name`: in its place if it exists, else as the last. Returns the value it had.
    pub fn insert(&mut self, name: impl AsRef<str>, value: impl Into<Value>) -> Option<Value> {
        let (name, value) = (name.as_ref(), value.into());
        if let Some(at) = self.position(name) {
            return Some(std::mem::replace(&mut self.fields[at].1, value));
        }
        self.append(name.into(), value);
        None
    }

    /// Takes the field `name` out, keeping the order of the others. Costs a move of the fields after it.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.position(name)?;
        let (_, value) = self.fields.remove(at);
        self.reindex();
        Some(value)
    }

    /// Keeps only the fields of which `keep` is true.
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

    /// The values in order, to change them.
    pub fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Value> {
        self.fields.iter_mut().map(|(_, value)| value)
    }

    /// An object of fields whose names are known to differ, with their index if they need one.
    pub(crate) fn from_unique(fields: Vec<(Name, Value)>, index: Option<Box<NameIndex>>) -> Self {
        debug_assert_eq!(index.is_some(), fields.len() > INDEX_FROM, "only large objects have an index");
        Object { fields, index }
    }

    fn position(&self, name: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.position(name, &self.fields),
            None => self.fields.iter().position(|(known, _)| known == name),
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
        self.index = (self.fields.len() > INDEX_FROM).then(|| Box::new(NameIndex::of(&self.fields)));
    }
}

/// Where each name stands among the fields of a large object. Its hash is keyed, so no input can make it slow.
#[derive(Clone)]
pub(crate) struct NameIndex {
    places: HashTable<Place>,
    hasher: RandomState,
}

/// A position, and part of its name's hash, which saves looking at the name when the table grows or another name is near.
#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    position: u32,
}

impl Place {
    /// The hash for the table, which looks at the top bits as well as the low ones.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

impl NameIndex {
    /// The index of `fields`, whose names differ.
    pub(crate) fn of(fields: &[(Name, Value)]) -> Self {
        let places = HashTable::with_capacity(fields.len() + 1);
        let mut index = NameIndex { places, hasher: RandomState::new() };
        for count in 1..=fields.len() {
            index.add_last(&fields[..count]);
        }
        index
    }

    /// Adds the last of `fields`, the others being known.
    pub(crate) fn add_last(&mut self, fields: &[(Name, Value)]) {
        let [others @ .., (name, _)] = fields else { return };
        let place = self.place(name, others.len());
        self.places.insert_unique(place.spread(), place, Place::spread);
    }

    /// The position of `name`.
    pub(crate) fn position(&self, name: &str, fields: &[(Name, Value)]) -> Option<usize> {
        let wanted = self.place(name, 0);
        let same = |place: &Place| place.hash == wanted.hash && fields[place.position as usize].0 == name;
        self.places.find(wanted.spread(), same).map(|place| place.position as usize)
    }

    fn place(&self, name: &str, position: usize) -> Place {
        Place { hash: self.hasher.hash_one(name) as u32, position: position as u32 }
    }
}

/// The fields of an [`Object`] in order.
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

/// The fields of an [`Object`] that is taken apart, in order.
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
    /// Of fields with the same name, the last value stays, at the place of the first.
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
    fn order_is_kept_and_names_are_unique() {
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
    fn equality_is_of_fields_in_order() {
        let ab: Object = [("a", 1), ("b", 2)].into_iter().collect();
        let ba: Object = [("b", 2), ("a", 1)].into_iter().collect();
        assert_ne!(ab, ba);
        assert_eq!(ab, ab.clone());
    }
}
