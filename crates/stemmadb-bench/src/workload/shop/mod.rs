//! The shop workload: customers, products, orders, reviews, and shoppers' plans. Sizes, probabilities and operations
//! follow BonsaiDb's commerce benchmark; the words are our own.

mod generate;
mod model;
mod plan;
mod words;

use serde::{Deserialize, Serialize};

use crate::harness::Random;

pub(crate) use model::{ShopModel, ShopState, ShopperVisit, StepResult, expect_equal};
pub(crate) use plan::{BALANCED, OPERATIONS, Operation, Plan, PlanKind, READ_HEAVY, Step, WRITE_HEAVY};

/// Initial size of a shop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) customer_count: u32,
    pub(crate) product_count: u32,
    pub(crate) category_count: u32,
    pub(crate) order_count: u32,
    pub(crate) review_count: u32,
}

/// The three sizes, smallest first.
pub(crate) const SIZES: [Size; 3] = [
    Size {
        name: "small",
        customer_count: 100,
        product_count: 100,
        category_count: 10,
        order_count: 125,
        review_count: 50,
    },
    Size {
        name: "medium",
        customer_count: 1_000,
        product_count: 1_000,
        category_count: 50,
        order_count: 1_500,
        review_count: 500,
    },
    Size {
        name: "large",
        customer_count: 5_000,
        product_count: 5_000,
        category_count: 100,
        order_count: 5_000,
        review_count: 1_000,
    },
];

/// A shop's initial contents. Customers, categories, products and orders are numbered from 0 in this order.
#[derive(Serialize)]
pub(crate) struct Stock {
    pub(crate) customers: Vec<Customer>,
    pub(crate) categories: Vec<Category>,
    pub(crate) products: Vec<Product>,
    pub(crate) orders: Vec<Order>,
    pub(crate) reviews: Vec<Review>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Customer {
    pub(crate) name: String,
    pub(crate) email: String,
    pub(crate) address: String,
    pub(crate) city: String,
    pub(crate) region: String,
    pub(crate) country: String,
    pub(crate) postal_code: String,
    pub(crate) phone: String,
}

/// A category; names are not unique.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Category {
    pub(crate) name: String,
}

/// A product; names are unique, and category ids ascend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Product {
    pub(crate) name: String,
    pub(crate) category_ids: Vec<u32>,
}

/// An order, or a cart if it has no customer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) customer_id: Option<u32>,
    pub(crate) product_ids: Vec<u32>,
}

/// A review; at most one per product and customer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Review {
    pub(crate) customer_id: u32,
    pub(crate) product_id: u32,
    pub(crate) rating: u8,
    pub(crate) review: Option<String>,
}

/// A product with its aggregated reviews.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ProductWithRating {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// In ascending order.
    pub(crate) category_ids: Vec<u32>,
    pub(crate) rating: Rating,
}

/// Aggregated reviews of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Rating {
    pub(crate) total: u32,
    pub(crate) count: u32,
}

impl Size {
    /// The least number of documents with orders and reviews.
    pub(crate) const DOCUMENTS_MIN: u64 = 100;

    /// Returns the size with about `count` documents, in the proportions of the medium one.
    pub(crate) fn of_documents(count: u64) -> Self {
        let medium = SIZES[1];
        let scaled = |part: u32| {
            let share = u64::from(part) * count / medium.document_count();
            u32::try_from(share.max(1)).unwrap_or(u32::MAX)
        };
        Size {
            name: "single",
            customer_count: scaled(medium.customer_count),
            product_count: scaled(medium.product_count),
            category_count: scaled(medium.category_count),
            order_count: scaled(medium.order_count),
            review_count: scaled(medium.review_count),
        }
    }

    /// Generates the stock and the plans of `shopper_count` shoppers from one generator.
    pub(crate) fn generate(&self, seed: u64, kind: &PlanKind, shopper_count: usize) -> (Stock, Vec<Plan>) {
        let mut random = Random::new(seed);
        let stock = generate::stock(self, &mut random);
        let plans = (0..shopper_count).map(|_| kind.plan(self, &mut random)).collect();
        (stock, plans)
    }

    /// Returns the initial number of documents.
    pub(crate) fn document_count(&self) -> u64 {
        let counts =
            [self.customer_count, self.product_count, self.category_count, self.order_count, self.review_count];
        counts.into_iter().map(u64::from).sum()
    }
}

#[cfg(test)]
mod tests;
