//! Dictionary of shapes: the ordered lists of field names that the objects of a database have.
//!
//! A packed object stores the number of its shape instead of its field names.
//!
//! **Invariants.** A shape never changes and is never removed. Shape numbers are dense from 0. No two shapes have the
//! same names in the same order. The names of a shape are unique.
//!
//! **Limits.** [`SHAPES_MAX`] shapes of [`NAMES_MAX`] names each, and [`TEXT_BYTES_MAX`] bytes of names in total. The
//! first [`EAGER_SHAPES`] shapes are added when first seen; later ones only when seen a second time, so that objects
//! used as maps, whose names never repeat, do not exhaust the numbers. An object whose shape is not added is stored
//! with its names.
//!
//! **Concurrency.** Looking a shape up by number takes no lock and counts no reference. Looking it up by its names
//! takes a read lock. Adding one takes the write lock.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::print::write_json_string;
use crate::sync::RwLock;
use crate::{Error, Result};

/// The most shapes of a database.
pub(crate) const SHAPES_MAX: usize = 16_384;
/// The most names of a shape.
pub(crate) const NAMES_MAX: usize = 1_024;
/// The most bytes of names of all shapes.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// The number of shapes that are added when first seen.
const EAGER_SHAPES: usize = 4_096;
/// The slots for hashes of rejected shapes, which are added when seen again. A collision forgets the older one.
const REJECTED_SLOTS: usize = 8_192;
/// Shapes of this many names or fewer are searched linearly.
const LINEAR_SEARCH_MAX: usize = 3;

/// The number of shapes on a page.
const PAGE: usize = 256;

/// Shapes by the low part of their numbers. A page is allocated with its first shape.
type Page = Box<[OnceLock<Shape>]>;

/// The number of a shape within its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShapeNumber(u16);

impl ShapeNumber {
    /// The shape number `number`, if it is in range.
    pub(crate) fn new(number: u64) -> Option<Self> {
        u16::try_from(number).ok().filter(|&number| usize::from(number) < SHAPES_MAX).map(ShapeNumber)
    }

    /// The number itself, dense from 0.
    pub(crate) fn get(self) -> usize {
        self.0.into()
    }
}

/// The field names of an object, in order.
#[derive(Debug)]
pub(crate) struct Shape {
    number: ShapeNumber,
    text: Box<str>,
    /// The end of each name in `text`.
    ends: Box<[u32]>,
    /// Each name as JSON text: a comma, the name quoted and escaped, a colon.
    json: Box<[u8]>,
    /// The end of each name in `json`.
    json_ends: Box<[u32]>,
    /// Hash table with open addressing by [`quick_hash`]: position + 1, or 0 for a free slot. Empty for linear search.
    slots: Box<[u16]>,
}

impl Shape {
    fn new<'n>(number: ShapeNumber, names: impl ExactSizeIterator<Item = &'n str> + Clone) -> Self {
        let mut ends = Vec::with_capacity(names.len());
        let mut text = String::with_capacity(names.clone().map(str::len).sum());
        let (mut json, mut json_ends) = (Vec::new(), Vec::with_capacity(names.len()));
        for name in names.clone() {
            text.push_str(name);
            ends.push(text.len() as u32);
            json.push(b',');
            write_json_string(name, &mut json);
            json.push(b':');
            json_ends.push(json.len() as u32);
        }
        Shape {
            number,
            text: text.into(),
            ends: ends.into(),
            json: json.into(),
            json_ends: json_ends.into(),
            slots: build_slots(names),
        }
    }

    /// The number of the shape.
    pub(crate) fn number(&self) -> ShapeNumber {
        self.number
    }

    /// The number of fields.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The name of the field at `position`.
    #[inline]
    pub(crate) fn name(&self, position: usize) -> Option<&str> {
        let end = *self.ends.get(position)? as usize;
        let start = if position == 0 { 0 } else { self.ends[position - 1] as usize };
        self.text.get(start..end)
    }

    /// The name of the field at `position` as JSON text, with a comma before it and a colon after it.
    #[inline]
    pub(super) fn json_name(&self, position: usize) -> &[u8] {
        let Some(end) = self.json_ends.get(position) else { return b",\"\":" };
        let start = if position == 0 { 0 } else { self.json_ends[position - 1] as usize };
        &self.json[start..*end as usize]
    }

    /// The names in order.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|position| self.name(position).unwrap_or_default())
    }

    /// The position of the field `name`.
    #[inline]
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        if self.slots.is_empty() {
            return self.names().position(|field| field == name);
        }
        let mask = self.slots.len() - 1;
        let mut slot = quick_hash(name) as usize & mask;
        loop {
            let position = usize::from(self.slots[slot]).checked_sub(1)?;
            if self.name(position) == Some(name) {
                return Some(position);
            }
            slot = (slot + 1) & mask;
        }
    }
}

fn build_slots<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> Box<[u16]> {
    if names.len() <= LINEAR_SEARCH_MAX {
        return Box::default();
    }
    debug_assert!(names.len() <= NAMES_MAX, "the position of a name fits a 16-bit slot");
    let mut slots = vec![0u16; (2 * names.len()).next_power_of_two()];
    let mask = slots.len() - 1;
    for (position, name) in names.enumerate() {
        let mut slot = quick_hash(name) as usize & mask;
        while slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        slots[slot] = position as u16 + 1;
    }
    slots.into()
}

/// A hash of the first and last 8 bytes and the length of a name, in a few instructions. Names chosen to collide cost a
/// linear search of one shape, at most [`NAMES_MAX`] steps.
#[inline]
fn quick_hash(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let (first, last) = match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            (Some(first), Some(last)) => (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into()),
            _ => (bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)), 0),
        },
    };
    let mixed = (first ^ last.rotate_left(29) ^ bytes.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32
}

/// The number of the next dictionary.
static NEXT_DICTIONARY: AtomicU64 = AtomicU64::new(0);

/// The shape dictionary of a database.
pub(crate) struct Shapes {
    /// Distinguishes the dictionaries of a process.
    dictionary: u64,
    pages: Box<[OnceLock<Page>]>,
    count: AtomicUsize,
    index: RwLock<ShapeIndex>,
    /// Whether only [`Shapes::restore`] adds shapes.
    is_frozen: AtomicBool,
    hasher: DefaultHashBuilder,
}

/// Index of the shapes by their names.
#[derive(Default)]
struct ShapeIndex {
    by_names: HashTable<u16>,
    text_bytes: usize,
    /// Hashes of shapes that were seen and not added, a direct-mapped cache.
    rejected: Vec<u64>,
}

impl Default for Shapes {
    fn default() -> Self {
        Shapes::new()
    }
}

impl std::fmt::Debug for Shapes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shapes").field("len", &self.len()).finish()
    }
}

impl Shapes {
    /// A dictionary without shapes.
    pub(crate) fn new() -> Self {
        Shapes {
            dictionary: NEXT_DICTIONARY.fetch_add(1, Ordering::Relaxed),
            pages: (0..SHAPES_MAX / PAGE).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            index: RwLock::default(),
            is_frozen: AtomicBool::new(false),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Has objects of unknown shapes stored with their names from now on: another process numbers new shapes.
    pub(crate) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Release);
    }

    /// The number of the dictionary in this process.
    pub(crate) fn dictionary(&self) -> u64 {
        self.dictionary
    }

    /// The number of shapes; their numbers are 0 up to this, excluded.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The bytes of the names of all shapes.
    pub(crate) fn text_bytes(&self) -> usize {
        self.index.read().text_bytes
    }

    /// The shape with this number, if there is one. Takes no lock.
    #[inline]
    pub(crate) fn get(&self, number: ShapeNumber) -> Option<&Shape> {
        self.pages.get(number.get() / PAGE)?.get()?.get(number.get() % PAGE)?.get()
    }

    /// The shapes numbered `from` and above, in order: those that are not yet persisted.
    pub(crate) fn since(&self, from: usize) -> impl Iterator<Item = (ShapeNumber, &Shape)> {
        (from..self.len()).filter_map(|number| {
            let number = ShapeNumber::new(number as u64)?;
            Some((number, self.get(number)?))
        })
    }

    /// The number of the shape with these names, which is added if needed; `None` if it is rejected (see the module's
    /// limits).
    pub(crate) fn intern<'n, N>(&self, names: N) -> Option<ShapeNumber>
    where
        N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
    {
        let names = names.into_iter();
        if names.len() > NAMES_MAX {
            return None;
        }
        let hash = self.hash(names.clone());
        if let Some(number) = self.find(&self.index.read(), hash, names.clone()) {
            return Some(number);
        }
        if self.is_frozen.load(Ordering::Acquire) {
            return None;
        }
        let mut index = self.index.write();
        // Another thread may have added it between the two locks.
        if let Some(number) = self.find(&index, hash, names.clone()) {
            return Some(number);
        }
        let text_bytes: usize = names.clone().map(str::len).sum();
        let number = ShapeNumber::new(self.len() as u64)?;
        let is_accepted = index.text_bytes + text_bytes <= TEXT_BYTES_MAX
            && (number.get() < EAGER_SHAPES || index.was_rejected_before(hash))
            && are_unique(names.clone());
        is_accepted.then(|| {
            self.add(&mut index, hash, Shape::new(number, names));
            number
        })
    }

    /// Restores a persisted shape. Shapes are restored in ascending order of their numbers; restoring one twice is a
    /// no-op.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if another shape has that number, these names have another number, a
    /// smaller number is missing, or a name occurs twice.
    pub(crate) fn restore<'n, N>(&self, number: ShapeNumber, names: N) -> Result<()>
    where
        N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
    {
        let names = names.into_iter();
        let mut index = self.index.write();
        let hash = self.hash(names.clone());
        let count = self.len();
        match self.find(&index, hash, names.clone()) {
            Some(same) if same == number => Ok(()),
            None if number.get() == count && names.len() <= NAMES_MAX && are_unique(names.clone()) => {
                self.add(&mut index, hash, Shape::new(number, names));
                Ok(())
            }
            _ => Err(Error::corrupt(format!("shape {} contradicts the {count} shapes known", number.get()))),
        }
    }

    /// Restores a shape of a dictionary that lacks smaller numbers: that of a salvage, or of documents from elsewhere.
    /// A dictionary filled this way must only be read: its shapes cannot be found by their names.
    pub(crate) fn restore_sparse<'n, N>(&self, number: ShapeNumber, names: N)
    where
        N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
    {
        let names = names.into_iter();
        if names.len() <= NAMES_MAX && are_unique(names.clone()) {
            // If the number is set already, the first shape is kept: that of the log.
            self.slot(number).set(Shape::new(number, names)).ok();
        }
    }

    fn slot(&self, number: ShapeNumber) -> &OnceLock<Shape> {
        let page = self.pages[number.get() / PAGE].get_or_init(|| (0..PAGE).map(|_| OnceLock::new()).collect());
        &page[number.get() % PAGE]
    }

    fn hash<'n>(&self, names: impl ExactSizeIterator<Item = &'n str>) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut state = self.hasher.build_hasher();
        names.for_each(|name| name.hash(&mut state));
        state.finish()
    }

    fn find<'n>(
        &self,
        index: &ShapeIndex,
        hash: u64,
        names: impl ExactSizeIterator<Item = &'n str> + Clone,
    ) -> Option<ShapeNumber> {
        let matches = |&number: &u16| {
            self.get(ShapeNumber(number))
                .is_some_and(|shape| shape.len() == names.len() && shape.names().eq(names.clone()))
        };
        index.by_names.find(hash, matches).map(|&number| ShapeNumber(number))
    }

    fn add(&self, index: &mut ShapeIndex, hash: u64, shape: Shape) {
        let number = shape.number;
        assert_eq!(number.get(), self.len(), "shape numbers are dense");
        debug_assert!(are_unique(shape.names()), "the names of a shape are unique");
        debug_assert!(self.find(index, hash, shape.names()).is_none(), "no two shapes have the same names");
        index.text_bytes += shape.text.len();
        let is_new = self.slot(number).set(shape).is_ok();
        assert!(is_new, "a shape never changes");
        let rehash = |&number: &u16| self.get(ShapeNumber(number)).map_or(0, |shape| self.hash(shape.names()));
        index.by_names.insert_unique(hash, number.0, rehash);
        self.count.store(number.get() + 1, Ordering::Release);
    }
}

impl ShapeIndex {
    /// Whether a shape with this hash was rejected before; remembers the hash.
    fn was_rejected_before(&mut self, hash: u64) -> bool {
        if self.rejected.is_empty() {
            self.rejected = vec![0; REJECTED_SLOTS];
        }
        let slot = &mut self.rejected[hash as usize % REJECTED_SLOTS];
        std::mem::replace(slot, hash) == hash
    }
}

fn are_unique<'n>(names: impl Iterator<Item = &'n str>) -> bool {
    let mut seen = hashbrown::HashSet::new();
    names.into_iter().all(|name| seen.insert(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interning_is_idempotent_and_names_are_found() {
        let shapes = Shapes::new();
        let names: Vec<String> = (0..100).map(|i| format!("field{i}")).collect();
        for count in 0..100 {
            let number = shapes.intern(names[..count].iter().map(String::as_str)).expect("the dictionary is not full");
            assert_eq!(number.get(), count);
            assert_eq!(shapes.intern(names[..count].iter().map(String::as_str)), Some(number));
            let shape = shapes.get(number).expect("just interned");
            assert!(shape.names().eq(names[..count].iter().map(String::as_str)));
            for (position, name) in names.iter().enumerate() {
                assert_eq!(shape.position(name), (position < count).then_some(position));
            }
            assert_eq!(shape.position(""), None);
        }
        assert_ne!(shapes.intern(["ab", "c"]), shapes.intern(["a", "bc"]));
    }

    #[test]
    fn duplicate_or_too_many_names_are_rejected() {
        let shapes = Shapes::new();
        assert_eq!(shapes.intern(["a", "b", "a"]), None, "a name twice");
        let names: Vec<String> = (0..=NAMES_MAX).map(|i| i.to_string()).collect();
        assert!(shapes.intern(names[1..].iter().map(String::as_str)).is_some());
        assert_eq!(shapes.intern(names.iter().map(String::as_str)), None, "too many names");
        assert_eq!(shapes.len(), 1);
    }

    #[test]
    fn objects_used_as_maps_do_not_exhaust_the_numbers() {
        let shapes = Shapes::new();
        for i in 0..2 * SHAPES_MAX {
            shapes.intern([i.to_string().as_str()]);
        }
        assert_eq!(shapes.len(), EAGER_SHAPES);
        assert_eq!(shapes.intern(["name", "year"]), None, "seen once");
        assert!(shapes.intern(["name", "year"]).is_some(), "seen twice");
        for i in 0..2 * SHAPES_MAX {
            shapes.intern(["again", i.to_string().as_str()]);
            shapes.intern(["again", i.to_string().as_str()]);
        }
        assert_eq!(shapes.len(), SHAPES_MAX);
        assert_eq!(shapes.intern(["full"]), None);
        assert_eq!(shapes.intern(["full"]), None);
    }

    #[test]
    fn restoring_is_idempotent_and_rejects_contradictions() {
        let (old, new) = (Shapes::new(), Shapes::new());
        for i in 0..300 {
            old.intern(["x", i.to_string().as_str()]);
        }
        for _ in 0..2 {
            for (number, shape) in old.since(0) {
                new.restore(number, shape.names()).expect("as persisted");
            }
        }
        assert_eq!(new.len(), 300);
        let number = |number| ShapeNumber::new(number).expect("small");
        assert!(new.restore(number(5), ["other"]).is_err());
        assert!(new.restore(number(300), ["x", "5"]).is_err());
        assert!(new.restore(number(301), ["gap"]).is_err());
        assert!(new.restore(number(300), ["a", "a"]).is_err());
        assert!(new.restore(number(300), ["next"]).is_ok());
        assert_eq!(ShapeNumber::new(SHAPES_MAX as u64), None);
    }

    #[test]
    fn concurrent_threads_get_the_same_numbers() {
        let shapes = Shapes::new();
        let numbers: Vec<Vec<_>> = std::thread::scope(|scope| {
            let intern = || (0..500).map(|i| shapes.intern([format!("{}", i % 97).as_str()])).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(intern)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(shapes.len(), 97);
        assert!(numbers.iter().all(|thread_numbers| *thread_numbers == numbers[0]));
    }
}
