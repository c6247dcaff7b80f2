//! Document bodies generated from small numbers: equal numbers give equal bodies.

use stemmadb::{Number, Object, Value};

/// A deterministic random number generator (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A random element of the slice.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

const NAMES: [&str; 9] = ["year", "title", "tags", "shelf", "price", "a.b", "é", "deep", "note"];
const WORDS: [&str; 8] = ["", "solaris", "sol", "Solaris", "été", "\u{0}", "z\u{10ffff}", "roadside picnic"];

/// The body for `seed`: fields of every kind, few distinct values, occasionally large.
pub(crate) fn body(seed: u64) -> Value {
    let mut random = Random(seed);
    let mut object = Object::new();
    for _ in 0..random.below(7) {
        object.insert(*random.pick(&NAMES), value(&mut random, 3));
    }
    match random.below(40) {
        0 => {
            let length = random.below(9000) as usize;
            object.insert("large", "0123456789abcdef".repeat(length / 16));
        }
        1 => {
            let elements = (0..random.below(300)).map(|number| Value::from(number as i64)).collect();
            object.insert("many", Value::Array(elements));
        }
        2 => {
            // A field name that no other body has, and so its own shape.
            object.insert(format!("rare-{}", seed % 1000), seed as i64);
        }
        _ => {}
    }
    Value::Object(object)
}

fn value(random: &mut Random, depth: u32) -> Value {
    match random.below(if depth == 0 { 8 } else { 11 }) {
        0 => Value::Null,
        1 => Value::Bool(random.below(2) == 1),
        2 | 3 => Value::from(random.below(6) as i64 - 2),
        4 => Value::Number(Number::from_f64(random.below(8) as f64 / 2.0 - 1.0).expect("finite")),
        5 => Value::Number(Number::from_i128((1 << 53) + i128::from(random.below(3))).expect("in range")),
        6 | 7 => Value::from(*random.pick(&WORDS)),
        8 => Value::Array((0..random.below(4)).map(|_| value(random, depth - 1)).collect()),
        _ => {
            let fields = (0..random.below(4)).map(|_| (*random.pick(&NAMES), value(random, depth - 1)));
            Value::Object(fields.collect())
        }
    }
}
