//! Requests and replies: the shop's contents, shoppers' steps and their results, as `stemmadb-bench` writes them.

use serde::{Deserialize, Serialize};

use crate::schema::{Category, Customer, Order, Product, Review};

#[derive(Deserialize)]
pub(crate) enum Request {
    Load(Stock),
    Serve { agent_count: usize, plans: Vec<Vec<Step>> },
    Call(Call),
    State,
}

#[derive(Serialize)]
pub(crate) enum Reply {
    /// Nanoseconds.
    Loaded(u64),
    Served {
        /// Nanoseconds from the first plan until the last shopper is served.
        elapsed: u64,
        /// For each plan, each step's nanoseconds and result.
        visits: Vec<Vec<(u64, StepResult)>>,
    },
    Called(Answer),
    State(State),
    Failed(String),
}

/// The shop's initial contents. Customers, categories, products and orders are numbered from 0.
#[derive(Deserialize)]
pub(crate) struct Stock {
    pub(crate) customers: Vec<Customer>,
    pub(crate) categories: Vec<Category>,
    pub(crate) products: Vec<Product>,
    pub(crate) orders: Vec<Order>,
    pub(crate) reviews: Vec<Review>,
}

#[derive(Clone, Copy, Deserialize)]
pub(crate) enum Step {
    FindProduct(u32),
    LookupProduct(u32),
    CreateCart,
    AddProduct(u32),
    Checkout { customer_id: u32 },
    RateProduct { customer_id: u32, product_id: u32, rating: u8 },
}

#[derive(Serialize)]
pub(crate) enum StepResult {
    Product(Option<ProductWithRating>),
    Done,
    /// Products of the order, in ascending order.
    Ordered(Vec<u32>),
}

/// One operation of an agent, for verification.
#[derive(Deserialize)]
pub(crate) enum Call {
    FindProduct(String),
    LookUpProduct(u32),
    CreateCart,
    AddProduct { cart: u64, product_id: u32 },
    Checkout { cart: u64, customer_id: u32 },
    RateProduct { customer_id: u32, product_id: u32, rating: u8 },
    Cart(u64),
}

#[derive(Serialize)]
pub(crate) enum Answer {
    Product(Option<ProductWithRating>),
    CartId(u64),
    Done,
    Products(Vec<u32>),
    Cart(Option<Vec<u32>>),
}

#[derive(Serialize)]
pub(crate) struct ProductWithRating {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) category_ids: Vec<u32>,
    pub(crate) rating: Rating,
}

#[derive(Serialize)]
pub(crate) struct Rating {
    pub(crate) total: u32,
    pub(crate) count: u32,
}

/// Everything that shoppers have changed.
#[derive(Serialize)]
pub(crate) struct State {
    pub(crate) orders: Vec<Order>,
    pub(crate) carts: Vec<Order>,
    /// Product, customer and rating.
    pub(crate) ratings: Vec<(u32, u32, u8)>,
}
