//! The shop in Stemma over the wire protocol: the same documents, a server in a separate process, one connection per
//! agent.
//!
//! A step that reads a product makes two requests, for the product and for its reviews. A step that writes makes one:
//! a product is added to a cart by a patch, and a cart becomes an order by a transaction that checks the cart's revision.
//! Agents keep the carts they wrote as their shopper's program would, and read one only if another agent wrote it.

use std::path::Path;

use serde::Serialize;
use serde_json::json;
use stemmadb::{Document, DocumentId, Edit, Patch, Query, Value, field};
use stemmadb_client::RemoteDatabase;
use uuid::Uuid;

use super::stemma::{cart_id, product_called, review_id};
use super::{Agent, CartId, Shop, Transport, ascending};
use crate::Result;
use crate::server::ServerProcess;
use crate::workload::shop::{Order, Product, ProductWithRating, Rating, Review, ShopState, Stock};

/// Describes the configuration, for the report.
pub(super) const SETTINGS: &str =
    "Stemma over its wire protocol: as `stemma serve` starts, synced, a TCP connection that is kept for each agent";

const DATABASE: &str = "shop";
/// Documents per load request.
const BATCH_COUNT: usize = 1_000;

/// A shop on its own server.
pub(crate) struct StemmaWireShop {
    server: ServerProcess,
}

impl StemmaWireShop {
    /// Starts a server on the directory `path` and loads the stock.
    pub(crate) fn open(path: &Path, stock: &Stock) -> Result<Self> {
        let server = ServerProcess::start(path, "sync")?;
        let database = server.connect(Transport::Tcp)?.create_database(DATABASE)?;
        let mut edits = Vec::new();
        add_all(&mut edits, "category", &stock.categories)?;
        add_all(&mut edits, "product", &stock.products)?;
        add_all(&mut edits, "customer", &stock.customers)?;
        add_all(&mut edits, "order", &stock.orders)?;
        for review in &stock.reviews {
            edits.push(insert(&review_id(review.product_id, review.customer_id), review)?);
        }
        while !edits.is_empty() {
            let batch = edits.drain(..edits.len().min(BATCH_COUNT)).collect();
            database.bulk(batch)?.into_iter().try_for_each(|written| written.map(drop))?;
        }
        Ok(StemmaWireShop { server })
    }

    /// Opens a connection to the shop's database.
    pub(crate) fn connect(&self) -> Result<RemoteDatabase> {
        Ok(self.server.connect(Transport::Tcp)?.database(DATABASE))
    }
}

fn insert<T: Serialize>(id: &str, body: &T) -> Result<Edit> {
    Ok(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
}

fn add_all<T: Serialize>(edits: &mut Vec<Edit>, kind: &str, all: &[T]) -> Result<()> {
    for (number, body) in all.iter().enumerate() {
        edits.push(insert(&format!("{kind}:{number}"), body)?);
    }
    Ok(())
}

impl Shop for StemmaWireShop {
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>> {
        Ok(Box::new(StemmaWireAgent { database: self.connect()? }))
    }

    fn state(&self) -> Result<ShopState> {
        let database = self.connect()?;
        let with_prefix = |prefix: &str| database.find(field("_id").begins_with(prefix)).documents();
        let orders = |prefix: &str| -> Result<Vec<Order>> {
            with_prefix(prefix)?.iter().map(|document| Ok(document.to()?)).collect()
        };
        let mut state = ShopState { orders: orders("order:")?, carts: orders("cart:")?, ..ShopState::default() };
        for document in with_prefix("review:")? {
            let review: Review = document.to()?;
            state.ratings.insert((review.product_id, review.customer_id), review.rating);
        }
        Ok(state.normalized())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct StemmaWireAgent {
    database: RemoteDatabase,
}

impl StemmaWireAgent {
    fn product_with_rating(&self, document: &Document) -> Result<Option<ProductWithRating>> {
        let Some(id) = document.id().as_str().strip_prefix("product:") else { return Ok(None) };
        let id: u32 = id.parse()?;
        let Product { name, category_ids } = document.to()?;
        let figures = json!({"count": "count", "total": {"sum": "rating"}});
        let groups = self.database.aggregate(&json!({"selector": {"product_id": id}, "figures": figures}).into())?;
        let figure = |name: &str| -> Result<u32> {
            let number = groups.first().and_then(|(_, figures)| figures.get(name)).and_then(Value::as_u64);
            Ok(number.unwrap_or(0).try_into()?)
        };
        let rating = Rating { total: figure("total")?, count: figure("count")? };
        Ok(Some(ProductWithRating { id, name, category_ids, rating }))
    }
}

impl Agent for StemmaWireAgent {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        let found = self.database.find(Query::new(product_called(name))).first()?;
        found.map_or(Ok(None), |document| self.product_with_rating(&document))
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        let found = self.database.get(&format!("product:{id}"))?;
        found.map_or(Ok(None), |document| self.product_with_rating(&document))
    }

    fn create_cart(&mut self) -> Result<CartId> {
        let cart = CartId(Uuid::now_v7().as_u128());
        self.database.insert(&cart_id(cart), &Order { customer_id: None, product_ids: Vec::new() })?;
        Ok(cart)
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        self.database.update(&cart_id(cart), &Patch::new().push("product_ids", product_id))?;
        Ok(())
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        let id = cart_id(cart);
        let document = self.database.get(&id)?.ok_or("the cart is gone")?;
        let order = Order { customer_id: Some(customer_id), ..document.to()? };
        let gone = Edit::Delete { id: document.id().clone(), revision: *document.revision() };
        let placed = insert(&format!("order:{}", Uuid::now_v7().simple()), &order)?;
        self.database.transact().edit(gone)?.edit(placed)?.commit()?;
        Ok(ascending(order.product_ids))
    }

    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()> {
        let review = Review { customer_id, product_id, rating, review: None };
        self.database.upsert(&review_id(product_id, customer_id), &review)?;
        Ok(())
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        let Some(document) = self.database.get(&cart_id(cart))? else { return Ok(None) };
        Ok(Some(ascending(document.to::<Order>()?.product_ids)))
    }
}
