//! The truth about a shop: kept the naive way, in memory, for every backend's answers and last state to be compared with.
//!
//! Where shoppers come at the same time, what depends on who came first is compared as far as it is determined: ratings then lie
//! between those at the opening and those at the end, and a customer's last rating is one that some shopper gave last.

use std::collections::{BTreeMap, BTreeSet};

use super::{Order, ProductSeen, Rating, Step, Stock};
use crate::Result;

/// A shop in memory.
#[derive(Clone)]
pub(crate) struct Model {
    /// Name and categories, by id.
    products: Vec<(String, Vec<u32>)>,
    state: State,
    /// What each product's reviews come to.
    totals: Vec<Rating>,
    /// By product and customer: what each shopper rated it last.
    given: BTreeMap<(u32, u32), BTreeSet<u8>>,
}

/// What a shop has that shoppers change. Products of orders and carts ascend, and so do orders and carts: backends number them
/// as they like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) orders: Vec<Order>,
    /// Those that were left.
    pub(crate) carts: Vec<Order>,
    /// Ratings by product and customer.
    pub(crate) ratings: BTreeMap<(u32, u32), u8>,
}

/// A shopper who is there.
#[derive(Default)]
pub(crate) struct Visit {
    /// What is in the cart.
    pub(crate) cart: Option<Vec<u32>>,
    /// The last rating of each product and customer.
    given: BTreeMap<(u32, u32), u8>,
}

/// What a shopper is told of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Product(Option<ProductSeen>),
    Done,
    /// The products of the order, ascending.
    Ordered(Vec<u32>),
}

impl Model {
    /// A shop that opens with `stock`.
    pub(crate) fn new(stock: &Stock) -> Self {
        let products: Vec<_> =
            stock.products.iter().map(|product| (product.name.clone(), product.category_ids.clone())).collect();
        let orders = stock.orders.iter().cloned().map(sorted).collect();
        let totals = vec![Rating::default(); products.len()];
        let state = State { orders, ..State::default() };
        let mut model = Model { products, state, totals, given: BTreeMap::new() };
        for review in &stock.reviews {
            model.rate((review.product_id, review.customer_id), review.rating);
        }
        model
    }

    /// Serves a shopper; returns the answers to each step.
    pub(crate) fn serve(&mut self, plan: &[Step]) -> Vec<Answer> {
        let mut visit = Visit::default();
        let answers = plan.iter().map(|step| self.take(step, &mut visit)).collect();
        self.leave(visit);
        answers
    }

    /// Takes one step of a visit.
    pub(crate) fn take(&mut self, step: &Step, visit: &mut Visit) -> Answer {
        match *step {
            Step::FindProduct(id) | Step::LookupProduct(id) => return Answer::Product(Some(self.product(id))),
            Step::CreateCart => visit.cart = Some(Vec::new()),
            Step::AddProduct(id) => visit.cart.as_mut().expect("a plan makes a cart first").push(id),
            Step::Checkout { customer_id } => {
                let product_ids = visit.cart.take().expect("a plan makes a cart first");
                let order = sorted(Order { customer_id: Some(customer_id), product_ids });
                self.state.orders.push(order.clone());
                return Answer::Ordered(order.product_ids);
            }
            Step::RateProduct { customer_id, product_id, rating } => {
                self.rate((product_id, customer_id), rating);
                visit.given.insert((product_id, customer_id), rating);
            }
        }
        Answer::Done
    }

    /// Ends a visit; a cart that was not bought stays.
    pub(crate) fn leave(&mut self, visit: Visit) {
        for (pair, rating) in visit.given {
            self.given.entry(pair).or_default().insert(rating);
        }
        self.state.carts.extend(visit.cart.map(|product_ids| sorted(Order { customer_id: None, product_ids })));
    }

    fn rate(&mut self, pair: (u32, u32), rating: u8) {
        let total = &mut self.totals[pair.0 as usize];
        match self.state.ratings.insert(pair, rating) {
            Some(before) => total.total -= u32::from(before),
            None => total.count += 1,
        }
        total.total += u32::from(rating);
    }

    /// A product as it is seen now.
    pub(crate) fn product(&self, id: u32) -> ProductSeen {
        let (name, category_ids) = self.products[id as usize].clone();
        ProductSeen { id, name, category_ids, rating: self.totals[id as usize] }
    }

    /// The state as it is now.
    pub(crate) fn state(&self) -> State {
        self.state.clone().ordered()
    }

    /// Whether `answer` is what could be seen at some time between `opening` and this, the end; `expected` is what is told where
    /// shoppers come one after the other.
    pub(crate) fn check_between(&self, opening: &Model, expected: &Answer, answer: &Answer) -> Result<()> {
        let (Answer::Product(Some(expected)), Answer::Product(Some(seen))) = (expected, answer) else {
            return same(expected, answer);
        };
        let counts = opening.totals[seen.id as usize].count..=self.totals[seen.id as usize].count;
        let Rating { total, count } = seen.rating;
        if !counts.contains(&count) || !(count..=5 * count).contains(&total) {
            return Err(format!("{} of {count} is no rating of product {}", total, seen.id).into());
        }
        same(&ProductSeen { rating: seen.rating, ..expected.clone() }, seen)
    }

    /// Whether `state` is how shoppers who came at the same time may have left the shop.
    pub(crate) fn check_left(&self, state: &State) -> Result<()> {
        let mut expected = self.state();
        for (pair, rating) in &mut expected.ratings {
            let candidates = self.given.get(pair);
            if let Some(found) =
                state.ratings.get(pair).filter(|found| candidates.is_some_and(|all| all.contains(found)))
            {
                *rating = *found;
            }
        }
        same(&expected, state)
    }
}

impl State {
    /// In the order that states are compared in.
    pub(crate) fn ordered(self) -> Self {
        let in_order = |all: Vec<Order>| {
            let mut all: Vec<Order> = all.into_iter().map(sorted).collect();
            all.sort();
            all
        };
        State { orders: in_order(self.orders), carts: in_order(self.carts), ratings: self.ratings }
    }
}

/// An error that shows both where they differ.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(expected: &T, found: &T) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    let equal = expected.bytes().zip(found.bytes()).take_while(|(left, right)| left == right).count();
    let around = |text: &str| -> String { text.chars().skip(equal.saturating_sub(60)).take(160).collect() };
    Err(format!("expected … {} …, found … {} …", around(&expected), around(&found)).into())
}

fn sorted(mut order: Order) -> Order {
    order.product_ids.sort_unstable();
    order
}
