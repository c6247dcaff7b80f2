//! A naive in-memory model of a shop, with which every engine's results and final state are compared.
//!
//! With concurrent shoppers, results that depend on their order are compared as far as they are determined: ratings lie
//! between the initial and the final ones, and a customer's last rating is one that some shopper gave last.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Order, ProductWithRating, Rating, Step, Stock};
use crate::Result;

/// The model.
#[derive(Clone)]
pub(crate) struct ShopModel {
    /// Names and categories by product id.
    products: Vec<(String, Vec<u32>)>,
    state: ShopState,
    /// Aggregated reviews by product id.
    totals: Vec<Rating>,
    /// Each shopper's last rating, by product and customer.
    last_ratings: BTreeMap<(u32, u32), BTreeSet<u8>>,
}

/// The mutable contents of a shop. Products within orders and carts are sorted, and so are orders and carts, because
/// engines number them differently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShopState {
    pub(crate) orders: Vec<Order>,
    /// Carts that were not bought.
    pub(crate) carts: Vec<Order>,
    /// Ratings by product and customer.
    pub(crate) ratings: BTreeMap<(u32, u32), u8>,
}

/// A shopper in the shop.
#[derive(Default)]
pub(crate) struct ShopperVisit {
    /// The products in the cart.
    pub(crate) cart: Option<Vec<u32>>,
    /// The last rating, by product and customer.
    last_ratings: BTreeMap<(u32, u32), u8>,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum StepResult {
    Product(Option<ProductWithRating>),
    Done,
    /// Products of the order, in ascending order.
    Ordered(Vec<u32>),
}

impl ShopModel {
    /// Creates a model with the initial `stock`.
    pub(crate) fn new(stock: &Stock) -> Self {
        let products: Vec<_> =
            stock.products.iter().map(|product| (product.name.clone(), product.category_ids.clone())).collect();
        let orders = stock.orders.iter().cloned().map(sorted).collect();
        let totals = vec![Rating::default(); products.len()];
        let state = ShopState { orders, ..ShopState::default() };
        let mut model = ShopModel { products, state, totals, last_ratings: BTreeMap::new() };
        for review in &stock.reviews {
            model.rate((review.product_id, review.customer_id), review.rating);
        }
        model
    }

    /// Serves a shopper; returns the result of each step.
    pub(crate) fn serve(&mut self, plan: &[Step]) -> Vec<StepResult> {
        let mut visit = ShopperVisit::default();
        let results = plan.iter().map(|step| self.apply_step(step, &mut visit)).collect();
        self.end_visit(visit);
        results
    }

    /// Applies one step of a visit.
    pub(crate) fn apply_step(&mut self, step: &Step, visit: &mut ShopperVisit) -> StepResult {
        match *step {
            Step::FindProduct(id) | Step::LookupProduct(id) => return StepResult::Product(Some(self.product(id))),
            Step::CreateCart => visit.cart = Some(Vec::new()),
            Step::AddProduct(id) => visit.cart.as_mut().expect("a plan makes a cart first").push(id),
            Step::Checkout { customer_id } => {
                let product_ids = visit.cart.take().expect("a plan makes a cart first");
                let order = sorted(Order { customer_id: Some(customer_id), product_ids });
                self.state.orders.push(order.clone());
                return StepResult::Ordered(order.product_ids);
            }
            Step::RateProduct { customer_id, product_id, rating } => {
                self.rate((product_id, customer_id), rating);
                visit.last_ratings.insert((product_id, customer_id), rating);
            }
        }
        StepResult::Done
    }

    /// Ends a visit; an unpurchased cart remains.
    pub(crate) fn end_visit(&mut self, visit: ShopperVisit) {
        for (pair, rating) in visit.last_ratings {
            self.last_ratings.entry(pair).or_default().insert(rating);
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

    /// Returns a product's current state.
    pub(crate) fn product(&self, id: u32) -> ProductWithRating {
        let (name, category_ids) = self.products[id as usize].clone();
        ProductWithRating { id, name, category_ids, rating: self.totals[id as usize] }
    }

    /// Returns the current state.
    pub(crate) fn state(&self) -> ShopState {
        self.state.clone().normalized()
    }

    /// Checks that `result` was possible at some time between `initial` and this final model; `expected` is the result
    /// for sequential shoppers.
    pub(crate) fn check_concurrent_result(
        &self,
        initial: &ShopModel,
        expected: &StepResult,
        result: &StepResult,
    ) -> Result<()> {
        let (StepResult::Product(Some(expected)), StepResult::Product(Some(seen))) = (expected, result) else {
            return expect_equal(expected, result);
        };
        let counts = initial.totals[seen.id as usize].count..=self.totals[seen.id as usize].count;
        let Rating { total, count } = seen.rating;
        if !counts.contains(&count) || !(count..=5 * count).contains(&total) {
            return Err(format!("{} of {count} is no rating of product {}", total, seen.id).into());
        }
        expect_equal(&ProductWithRating { rating: seen.rating, ..expected.clone() }, seen)
    }

    /// Checks that `state` is a possible final state after concurrent shoppers.
    pub(crate) fn check_final_state(&self, state: &ShopState) -> Result<()> {
        let mut expected = self.state();
        for (pair, rating) in &mut expected.ratings {
            let candidates = self.last_ratings.get(pair);
            if let Some(found) =
                state.ratings.get(pair).filter(|found| candidates.is_some_and(|all| all.contains(found)))
            {
                *rating = *found;
            }
        }
        expect_equal(&expected, state)
    }
}

impl ShopState {
    /// Sorts orders and carts for comparison.
    pub(crate) fn normalized(self) -> Self {
        let in_order = |all: Vec<Order>| {
            let mut all: Vec<Order> = all.into_iter().map(sorted).collect();
            all.sort();
            all
        };
        ShopState { orders: in_order(self.orders), carts: in_order(self.carts), ratings: self.ratings }
    }
}

/// Returns an error that shows where the two differ.
pub(crate) fn expect_equal<T: PartialEq + std::fmt::Debug>(expected: &T, found: &T) -> Result<()> {
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
