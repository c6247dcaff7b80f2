//! Shoppers' plans, generated before timing.

use serde::Serialize;

use super::Size;
use crate::harness::Random;

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    FindProduct,
    LookupProduct,
    CreateCart,
    AddProduct,
    Checkout,
    RateProduct,
}

/// All operations, reads first.
pub(crate) const OPERATIONS: [Operation; 6] = [
    Operation::LookupProduct,
    Operation::FindProduct,
    Operation::CreateCart,
    Operation::AddProduct,
    Operation::Checkout,
    Operation::RateProduct,
];

/// An operation with its arguments. A shopper has at most one cart, and reviews as the customer who checked out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Step {
    /// By name.
    FindProduct(u32),
    /// By id.
    LookupProduct(u32),
    CreateCart,
    AddProduct(u32),
    Checkout {
        customer_id: u32,
    },
    RateProduct {
        customer_id: u32,
        product_id: u32,
        rating: u8,
    },
}

/// The steps of one shopper.
pub(crate) type Plan = Vec<Step>;

/// A behavior of shoppers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanKind {
    pub(crate) name: &'static str,
    /// Probability that a viewed product is added to the cart, that the cart is bought, and that a bought product is
    /// rated.
    chance: f64,
}

pub(crate) const BALANCED: PlanKind = PlanKind { name: "balanced", chance: 0.25 };
pub(crate) const READ_HEAVY: PlanKind = PlanKind { name: "readheavy", chance: 0.1 };
pub(crate) const WRITE_HEAVY: PlanKind = PlanKind { name: "writeheavy", chance: 0.9 };

/// Maximum number of products viewed.
const SEARCHES_MAX: u64 = 10;

impl PlanKind {
    pub(super) fn plan(&self, size: &Size, random: &mut Random) -> Plan {
        let mut plan = Plan::new();
        let mut cart: Option<Vec<u32>> = None;
        for _ in 0..=random.below(SEARCHES_MAX) {
            let by_name = random.chance(0.5);
            let product_id = random.below(u64::from(size.product_count)) as u32;
            plan.push(if by_name { Step::FindProduct(product_id) } else { Step::LookupProduct(product_id) });
            if random.chance(self.chance) {
                if cart.is_none() {
                    plan.push(Step::CreateCart);
                }
                cart.get_or_insert_default().push(product_id);
                plan.push(Step::AddProduct(product_id));
            }
        }
        let Some(cart) = cart.filter(|_| random.chance(self.chance)) else { return plan };
        let customer_id = random.below(u64::from(size.customer_count)) as u32;
        plan.push(Step::Checkout { customer_id });
        for product_id in cart {
            if random.chance(self.chance) {
                let rating = 1 + random.below(5) as u8;
                plan.push(Step::RateProduct { customer_id, product_id, rating });
            }
        }
        plan
    }
}

impl Step {
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Step::FindProduct(_) => Operation::FindProduct,
            Step::LookupProduct(_) => Operation::LookupProduct,
            Step::CreateCart => Operation::CreateCart,
            Step::AddProduct(_) => Operation::AddProduct,
            Step::Checkout { .. } => Operation::Checkout,
            Step::RateProduct { .. } => Operation::RateProduct,
        }
    }
}

impl Operation {
    /// Returns whether the operation writes, and so must be durable.
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Operation::FindProduct | Operation::LookupProduct)
    }

    /// Returns the name used in row names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::FindProduct => "find product",
            Operation::LookupProduct => "look up product",
            Operation::CreateCart => "create cart",
            Operation::AddProduct => "add product to cart",
            Operation::Checkout => "checkout",
            Operation::RateProduct => "rate product",
        }
    }
}
