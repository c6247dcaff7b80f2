//! Generates a shop's stock in a fixed order from one generator.

use std::collections::HashSet;

use super::words::{
    ADJECTIVES, CITIES, COUNTRIES, FIRST_NAMES, LAST_NAMES, NOUNS, REGIONS, STREET_SUFFIXES, STREETS, VERBS, paragraph,
    pick,
};
use super::{Category, Customer, Order, Product, Review, Size, Stock};
use crate::harness::Random;

/// Exclusive upper bound on products per order.
const ORDER_PRODUCTS_END: u32 = 20;

pub(super) fn stock(size: &Size, random: &mut Random) -> Stock {
    let mut names = HashSet::new();
    let customers = (0..size.customer_count).map(|_| customer(random, &mut names)).collect();
    let categories =
        (0..size.category_count).map(|_| Category { name: pick(random, &ADJECTIVES).to_owned() }).collect();
    let mut names = HashSet::new();
    let products = (0..size.product_count).map(|_| product(size, random, &mut names)).collect();
    let orders: Vec<Order> = (0..size.order_count).map(|_| order(size, random)).collect();
    let reviews = reviews(size, random, &orders);
    Stock { customers, categories, products, orders, reviews }
}

fn below(random: &mut Random, end: u32) -> u32 {
    random.below(u64::from(end)) as u32
}

fn digits(random: &mut Random, count: u32) -> String {
    (0..count).map(|_| char::from(b'0' + below(random, 10) as u8)).collect()
}

/// Draws names until one is unused.
fn new_name(random: &mut Random, names: &mut HashSet<String>, draw: impl Fn(&mut Random) -> String) -> String {
    loop {
        let name = format!("{} {}", draw(random), below(random, 256));
        if names.insert(name.clone()) {
            return name;
        }
    }
}

fn customer(random: &mut Random, names: &mut HashSet<String>) -> Customer {
    let name =
        new_name(random, names, |random| format!("{} {}", pick(random, &FIRST_NAMES), pick(random, &LAST_NAMES)));
    let account = format!("{}.{}", pick(random, &FIRST_NAMES), pick(random, &LAST_NAMES)).to_lowercase();
    Customer {
        name,
        email: format!("{account}{}@example.com", below(random, 1_000)),
        address: format!("{} {} {}", 1 + below(random, 9_999), pick(random, &STREETS), pick(random, &STREET_SUFFIXES)),
        city: pick(random, &CITIES).to_owned(),
        region: pick(random, &REGIONS).to_owned(),
        country: pick(random, &COUNTRIES).to_owned(),
        postal_code: digits(random, 5),
        phone: format!("({}) {}-{}", digits(random, 3), digits(random, 3), digits(random, 4)),
    }
}

fn product(size: &Size, random: &mut Random, names: &mut HashSet<String>) -> Product {
    let name = new_name(random, names, |random| {
        let (verb, adjective, noun) = (pick(random, &VERBS), pick(random, &ADJECTIVES), pick(random, &NOUNS));
        format!("{verb} {} {noun}", adjective.to_lowercase())
    });
    let count = below(random, size.category_count.div_ceil(2));
    let mut category_ids = distinct(random, count, size.category_count);
    category_ids.sort_unstable();
    Product { name, category_ids }
}

fn order(size: &Size, random: &mut Random) -> Order {
    let customer_id = Some(below(random, size.customer_count));
    let count = below(random, size.product_count.div_ceil(3).min(ORDER_PRODUCTS_END));
    Order { customer_id, product_ids: distinct(random, count, size.product_count) }
}

/// Returns `count` distinct numbers below `end`, in the order drawn.
fn distinct(random: &mut Random, count: u32, end: u32) -> Vec<u32> {
    let mut numbers = Vec::with_capacity(count as usize);
    while numbers.len() < count as usize {
        let number = below(random, end);
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    numbers
}

/// Generates reviews by customers of products they ordered: from a random position among these pairs, the next one
/// without a review.
fn reviews(size: &Size, random: &mut Random, orders: &[Order]) -> Vec<Review> {
    let mut pairs = Vec::new();
    let mut seen = HashSet::new();
    for order in orders {
        let customer_id = order.customer_id.expect("an order has a customer");
        let bought = order.product_ids.iter().map(|product_id| (customer_id, *product_id));
        pairs.extend(bought.filter(|pair| seen.insert(*pair)));
    }
    let mut is_reviewed = vec![false; pairs.len()];
    let count = (size.review_count as usize).min(pairs.len());
    (0..count).map(|_| review(random, &pairs, &mut is_reviewed)).collect()
}

fn review(random: &mut Random, pairs: &[(u32, u32)], is_reviewed: &mut [bool]) -> Review {
    let mut at = random.below(pairs.len() as u64) as usize;
    while is_reviewed[at] {
        at = (at + 1) % pairs.len();
    }
    is_reviewed[at] = true;
    let rating = 1 + below(random, 5) as u8;
    let review = random.chance(0.25).then(|| {
        let paragraph_count = 1 + random.below(4);
        let paragraphs: Vec<String> = (0..paragraph_count).map(|_| paragraph(random)).collect();
        paragraphs.join("\n\n")
    });
    let (customer_id, product_id) = pairs[at];
    Review { customer_id, product_id, rating, review }
}
