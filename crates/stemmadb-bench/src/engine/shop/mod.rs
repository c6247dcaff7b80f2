//! Shops kept in Stemma and its peers, asked the same way, and durable: whoever is told that something is done is told after the disk was.

mod postgres;
mod postgres_server;
mod postgres_sql;
mod sqlite;
mod stemma;
mod stemma_http;

use crate::Result;
use crate::workload::shop::{ProductSeen, State};

pub(crate) use postgres::{Form, PostgresShop};
pub(crate) use postgres_server::{PostgresServer, Reach};
pub(crate) use sqlite::SqliteShop;
pub(crate) use stemma::StemmaShop;
pub(crate) use stemma_http::StemmaHttpShop;

/// How everyone is set up, for the record.
pub(crate) fn settings() -> String {
    let postgres = format!("{}, {}", PostgresServer::settings(), postgres::SETTINGS);
    [stemma::SETTINGS, stemma_http::SETTINGS, &postgres, sqlite::SETTINGS].join("; ")
}

/// A shop with its stock in it.
pub(crate) trait Shop {
    /// A way in of one's own: a connection, with its statements prepared.
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>>;

    /// What shoppers have changed so far.
    fn state(&self) -> Result<State>;

    /// Closes it.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Serves shoppers, one step at a time.
pub(crate) trait Agent {
    /// The product called so, with its categories and what its reviews come to.
    fn find_product(&mut self, name: &str) -> Result<Option<ProductSeen>>;

    /// The product with this id, the same way.
    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductSeen>>;

    /// Makes an empty cart.
    fn create_cart(&mut self) -> Result<CartId>;

    /// Puts a product into a cart, once more if it is there already.
    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()>;

    /// Makes a customer's order of a cart, which is no more then. All or nothing. Returns its products.
    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>>;

    /// Reviews a product, or changes the customer's review of it. From when this returns, everyone sees it.
    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()>;

    /// The products in a cart, if there is such a cart. Never timed.
    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>>;
}

/// Which cart: as the engine, or whoever uses it, numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CartId(u128);

/// Where a shop's documents or rows are numbered by an engine with 64 bits.
impl CartId {
    fn row(self) -> Result<i64> {
        Ok(i64::try_from(self.0)?)
    }

    fn of_row(row: i64) -> Result<Self> {
        Ok(CartId(u128::try_from(row)?))
    }
}

fn ascending(mut numbers: Vec<u32>) -> Vec<u32> {
    numbers.sort_unstable();
    numbers
}
