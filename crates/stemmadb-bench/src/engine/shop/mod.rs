//! The shop benchmark's engines behind one interface. Every write returns only after it is durable.

mod bonsai;
mod postgres;
mod postgres_server;
mod postgres_sql;
mod sqlite;
mod stemma;
mod stemma_http;
mod stemma_wire;

use std::time::Duration;

use crate::Result;
use crate::workload::shop::{Operation, Plan, ProductWithRating, ShopState, StepResult};

pub(crate) use bonsai::{BonsaiAccess, BonsaiProgram, BonsaiShop, VERSION as BONSAI_VERSION};
pub(crate) use postgres::{PostgresShop, PostgresVariant};
pub(crate) use postgres_server::{PostgresServer, Transport};
pub(crate) use sqlite::SqliteShop;
pub(crate) use stemma::StemmaShop;
pub(crate) use stemma_http::StemmaHttpShop;
pub(crate) use stemma_wire::StemmaWireShop;

/// Describes the configuration of all engines, for the report.
pub(crate) fn settings() -> String {
    let postgres = format!("{}, {}", PostgresServer::settings(), postgres::SETTINGS);
    [stemma::SETTINGS, stemma_wire::SETTINGS, stemma_http::SETTINGS, &postgres, sqlite::SETTINGS, bonsai::SETTINGS]
        .join("; ")
}

/// A shop loaded with its initial stock.
pub(crate) trait Shop {
    /// Opens an agent: a separate connection with prepared statements.
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>>;

    /// Serves a turn of shoppers with `agent_count` agents in another process, which measures it; `None` if agents of
    /// this process serve them.
    fn serve_elsewhere(&self, _agent_count: usize, _plans: &[Plan]) -> Result<Option<ServedTurn>> {
        Ok(None)
    }

    /// Returns everything that shoppers have changed.
    fn state(&self) -> Result<ShopState>;

    /// Closes the shop.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A served turn.
pub(crate) struct ServedTurn {
    /// From the first plan until the last shopper is served.
    pub(crate) elapsed: Duration,
    /// Nanoseconds of each step.
    pub(crate) costs: Vec<(Operation, u64)>,
    /// Results by plan number within the turn.
    pub(crate) results: Vec<Vec<StepResult>>,
}

/// Serves shoppers, one step at a time.
pub(crate) trait Agent {
    /// Finds a product by name, with its categories and its aggregated reviews.
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>>;

    /// Reads a product by id, with its categories and its aggregated reviews.
    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>>;

    /// Creates an empty cart.
    fn create_cart(&mut self) -> Result<CartId>;

    /// Adds a product to a cart; adding it twice stores it twice.
    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()>;

    /// Atomically turns a cart into an order of a customer and returns its products.
    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>>;

    /// Creates or replaces the customer's review of a product. All readers see it once this returns.
    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()>;

    /// Returns the products in a cart, if the cart exists. Never timed.
    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>>;
}

/// A cart's id, as assigned by the engine or by its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CartId(u128);

/// Conversions for engines that number rows with 64 bits.
impl CartId {
    fn row(self) -> Result<i64> {
        Ok(i64::try_from(self.0)?)
    }

    fn from_row(row: i64) -> Result<Self> {
        Ok(CartId(u128::try_from(row)?))
    }
}

fn ascending(mut numbers: Vec<u32>) -> Vec<u32> {
    numbers.sort_unstable();
    numbers
}
