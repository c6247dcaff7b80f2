//! The dictionary of shapes: which field names, in which order, the objects of a database have. A record names its shape
//! instead of its fields.
//!
//! Invariants: a shape never changes and is never removed; numbers are dense from 0; no two shapes have the same names; the
//! names of a shape differ.
//! Bounds: [`SHAPES_MAX`] shapes of [`NAMES_MAX`] names, and [`TEXT_BYTES_MAX`] of names in all. While few shapes are known
//! any new one is taken; after that only one that is met twice, so objects used as maps, whose names never repeat, don't
//! use the numbers up. An object whose shape is not taken is stored with its names.
//! Concurrency: reading a shape takes no lock and counts no reference; finding one by its names takes a read lock; only a
//! new one takes the write lock.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::print::write_json_string;
use crate::sync::RwLock;
use crate::{Error, Result};

/// How many shapes there can be.
pub(crate) const SHAPES_MAX: usize = 16_384;
/// How many names a shape can have.
pub(crate) const NAMES_MAX: usize = 1_024;
/// How many bytes the names of all shapes can have.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// How many shapes are taken at first sight.
const TAKEN_AT_SIGHT: usize = 4_096;
/// How many refused shapes are remembered, at least roughly, to take them when they come again.
const REMEMBERED: usize = 8_192;
/// Shapes of this many names or fewer are searched directly.
const SEARCHED_DIRECTLY: usize = 3;

/// How many shapes a page holds.
const PAGE: usize = 256;

/// Shapes by the low part of their numbers; a page comes to be with its first shape.
type Page = Box<[OnceLock<Shape>]>;

/// The number of a shape within its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShapeNumber(u16);

impl ShapeNumber {
    /// The shape number `number`, if shapes can have it.
    pub(crate) fn new(number: u64) -> Option<Self> {
        u16::try_from(number).ok().filter(|&number| usize::from(number) < SHAPES_MAX).map(ShapeNumber)
    }

    /// The number itself, counted from 0 without gaps.
    pub(crate) fn get(self) -> usize {
        self.0.into()
    }
}

/// The names of an object's fields in order.
#[derive(Debug)]
pub(crate) struct Shape {
    number: ShapeNumber,
    text: Box<str>,
    /// Where in `text` each name ends.
    ends: Box<[u32]>,
    /// The names as they stand in JSON: a comma, the name quoted and escaped, a colon; and where each ends.
    json: Box<[u8]>,
    json_ends: Box<[u32]>,
    /// Open addressing by [`quick_hash`]: position + 1, or 0; empty if the names are few.
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
            slots: slots(names),
        }
    }

    /// Its number.
    pub(crate) fn number(&self) -> ShapeNumber {
        self.number
    }

    /// How many fields.
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

    /// The name of the field at `position` as it stands in JSON, with a comma before it and a colon after it.
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
            return self.names().position(|known| known == name);
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

fn slots<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> Box<[u16]> {
    if names.len() <= SEARCHED_DIRECTLY {
        return Box::default();
    }
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

/// A hash of a name's ends: a few instructions. Names made to collide cost a search of one shape, at most [`NAMES_MAX`] steps.
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

/// All shapes of a database.
pub(crate) struct Shapes {
    pages: Box<[OnceLock<Page>]>,
    count: AtomicUsize,
    register: RwLock<Register>,
    hasher: DefaultHashBuilder,
}

#[derive(Default)]
struct Register {
    by_names: HashTable<u16>,
    text_bytes: usize,
    /// Hashes of shapes that were met once and not taken, each in the slot its hash says.
    met_once: Vec<u64>,
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
            pages: (0..SHAPES_MAX / PAGE).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            register: RwLock::default(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// How many shapes are known: their numbers are 0 up to this.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// How many bytes all their names have.
    pub(crate) fn text_bytes(&self) -> usize {
        self.register.read().text_bytes
    }

    /// The shape of this number, if it is known. Takes no lock.
    #[inline]
    pub(crate) fn get(&self, number: ShapeNumber) -> Option<&Shape> {
        self.pages.get(number.get() / PAGE)?.get()?.get(number.get() % PAGE)?.get()
    }

    /// The shapes numbered `from` and above, in order: what is not yet written down.
    pub(crate) fn since(&self, from: usize) -> impl Iterator<Item = (ShapeNumber, &Shape)> {
        (from..self.len()).filter_map(|number| {
            let number = ShapeNumber::new(number as u64)?;
            Some((number, self.get(number)?))
        })
    }

    /// The number of the shape with these names, which is new if need be; none if it is not taken (see the module's bounds).
    pub(crate) fn intern<'n, N>(&self, names: N) -> Option<ShapeNumber>
    where
        N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
    {
        let names = names.into_iter();
        if names.len() > NAMES_MAX {
            return None;
        }
        let hash = self.hash(names.clone());
        if let Some(number) = self.find(&self.register.read(), hash, names.clone()) {
            return Some(number);
        }
        let mut register = self.register.write();
        if let Some(number) = self.find(&register, hash, names.clone()) {
            return Some(number);
        }
        let text_bytes: usize = names.clone().map(str::len).sum();
        let number = ShapeNumber::new(self.len() as u64)?;
        let takes = register.text_bytes + text_bytes <= TEXT_BYTES_MAX
            && (number.get() < TAKEN_AT_SIGHT || register.met_before(hash))
            && all_differ(names.clone());
        takes.then(|| {
            self.add(&mut register, hash, Shape::new(number, names));
            number
        })
    }

    /// Makes the shape of `number` known again, in the order of numbers, as it was written down.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if another shape has that number, these names have another number, a number
    /// before it is missing, or a name is given twice.
    pub(crate) fn restore<'n, N>(&self, number: ShapeNumber, names: N) -> Result<()>
    where
        N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
    {
        let names = names.into_iter();
        let mut register = self.register.write();
        let hash = self.hash(names.clone());
        let known = self.len();
        match self.find(&register, hash, names.clone()) {
            Some(same) if same == number => Ok(()),
            None if number.get() == known && names.len() <= NAMES_MAX && all_differ(names.clone()) => {
                self.add(&mut register, hash, Shape::new(number, names));
                Ok(())
            }
            _ => Err(Error::corrupt(format!("shape {} contradicts the {known} shapes known", number.get()))),
        }
    }

    /// Makes the shape of `number` known where others before it may be lost. What is so restored is only read.
    pub(crate) fn restore_alone<'n, N>(&self, number: ShapeNumber, names: N)
    where
        N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
    {
        let names = names.into_iter();
        if names.len() <= NAMES_MAX && all_differ(names.clone()) {
            // The first is as good as the second: both are of the log.
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
        register: &Register,
        hash: u64,
        names: impl ExactSizeIterator<Item = &'n str> + Clone,
    ) -> Option<ShapeNumber> {
        let same = |&number: &u16| {
            self.get(ShapeNumber(number))
                .is_some_and(|shape| shape.len() == names.len() && shape.names().eq(names.clone()))
        };
        register.by_names.find(hash, same).map(|&number| ShapeNumber(number))
    }

    fn add(&self, register: &mut Register, hash: u64, shape: Shape) {
        let number = shape.number;
        debug_assert_eq!(number.get(), self.len(), "numbers are dense");
        register.text_bytes += shape.text.len();
        let fresh = self.slot(number).set(shape).is_ok();
        debug_assert!(fresh, "a shape is set once, under the write lock");
        let rehash = |&known: &u16| self.get(ShapeNumber(known)).map_or(0, |shape| self.hash(shape.names()));
        register.by_names.insert_unique(hash, number.0, rehash);
        self.count.store(number.get() + 1, Ordering::Release);
    }
}

impl Register {
    fn met_before(&mut self, hash: u64) -> bool {
        if self.met_once.is_empty() {
            self.met_once = vec![0; REMEMBERED];
        }
        let slot = &mut self.met_once[hash as usize % REMEMBERED];
        std::mem::replace(slot, hash) == hash
    }
}

fn all_differ<'n>(names: impl Iterator<Item = &'n str>) -> bool {
    let mut seen = hashbrown::HashSet::new();
    names.into_iter().all(|name| seen.insert(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_keeps_its_number_and_its_names() {
        let shapes = Shapes::new();
        let names: Vec<String> = (0..100).map(|i| format!("field{i}")).collect();
        for count in 0..100 {
            let number = shapes.intern(names[..count].iter().map(String::as_str)).expect("room for it");
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
    fn what_is_not_taken() {
        let shapes = Shapes::new();
        assert_eq!(shapes.intern(["a", "b", "a"]), None, "a name twice");
        let names: Vec<String> = (0..=NAMES_MAX).map(|i| i.to_string()).collect();
        assert!(shapes.intern(names[1..].iter().map(String::as_str)).is_some());
        assert_eq!(shapes.intern(names.iter().map(String::as_str)), None, "too many names");
        assert_eq!(shapes.len(), 1);
    }

    #[test]
    fn maps_do_not_use_the_numbers_up() {
        let shapes = Shapes::new();
        for i in 0..2 * SHAPES_MAX {
            shapes.intern([i.to_string().as_str()]);
        }
        assert_eq!(shapes.len(), TAKEN_AT_SIGHT);
        assert_eq!(shapes.intern(["name", "year"]), None, "at first sight");
        assert!(shapes.intern(["name", "year"]).is_some(), "when it comes again");
        for i in 0..2 * SHAPES_MAX {
            shapes.intern(["again", i.to_string().as_str()]);
            shapes.intern(["again", i.to_string().as_str()]);
        }
        assert_eq!(shapes.len(), SHAPES_MAX);
        assert_eq!(shapes.intern(["full"]), None);
        assert_eq!(shapes.intern(["full"]), None);
    }

    #[test]
    fn restoring_is_idempotent_and_finds_contradictions() {
        let (old, new) = (Shapes::new(), Shapes::new());
        for i in 0..300 {
            old.intern(["x", i.to_string().as_str()]);
        }
        for _ in 0..2 {
            for (number, shape) in old.since(0) {
                new.restore(number, shape.names()).expect("as written down");
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
    fn many_threads_agree() {
        let shapes = Shapes::new();
        let numbers: Vec<Vec<_>> = std::thread::scope(|scope| {
            let intern = || (0..500).map(|i| shapes.intern([format!("{}", i % 97).as_str()])).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(intern)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(shapes.len(), 97);
        assert!(numbers.iter().all(|of_thread| *of_thread == numbers[0]));
    }
}
