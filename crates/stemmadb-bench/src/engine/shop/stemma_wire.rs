//! The shop in Stemma over the wire protocol: the same documents, a server in a separate process, one connection per
//! agent.
//!
//! A step that reads makes one request: a batch reads the product and aggregates its reviews. So does a step that
//! writes, except a checkout: a product is added to a cart by a patch, and the cart that was read becomes an order by a
//! transaction that checks its revision.

use std::path::Path;

use serde::Serialize;
use serde_json::json;
use stemmadb::{Document, DocumentId, Edit, Patch, Query, Value, field};
use stemmadb_client::{Batch, BatchResults, RemoteDatabase};
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
        for one in &stock.reviews {
            edits.push(insert(&review_id(one.product_id, one.customer_id), &review(one)?)?);
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
    /// Runs a batch that reads a product in its first step, and aggregates its reviews in the second.
    fn product_with_rating(
        batch: Batch,
        product: impl Fn(&BatchResults) -> Result<Option<Document>>,
    ) -> Result<Option<ProductWithRating>> {
        let results = batch.run()?;
        let Some(document) = product(&results)? else { return Ok(None) };
        let id = document.id().as_str().strip_prefix("product:").ok_or("no product's id")?.parse()?;
        let Product { name, category_ids } = document.to()?;
        let groups = results.groups(1)?;
        let figure = |name: &str| -> Result<u32> {
            let number = groups.first().and_then(|(_, figures)| figures.get(name)).and_then(Value::as_u64);
            Ok(number.unwrap_or(0).try_into()?)
        };
        let rating = Rating { total: figure("total")?, count: figure("count")? };
        Ok(Some(ProductWithRating { id, name, category_ids, rating }))
    }
}

/// The aggregation of the reviews of products with these ids.
fn rating(products: &[String]) -> Value {
    let figures = json!({"count": "count", "total": {"sum": "rating"}});
    json!({"selector": {"product": {"$in": products}}, "figures": figures}).into()
}

/// A review, which refers to its product by the document's id.
fn review(review: &Review) -> Result<Value> {
    let mut body = Value::from_serialize(review)?;
    let object = body.as_object_mut().ok_or("a review is an object")?;
    object.insert("product", product_id(review.product_id));
    Ok(body)
}

fn product_id(number: u32) -> String {
    format!("product:{number}")
}

impl Agent for StemmaWireAgent {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        let batch = self.database.batch().find(Query::new(product_called(name)).limit(1))?;
        let batch = batch.aggregate(&rating(&[])).with("aggregation.selector.product.$in", 0, "[].id");
        Self::product_with_rating(batch, |results| Ok(results.documents(0)?.into_iter().next().flatten()))
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        let id = product_id(id);
        let batch = self.database.batch().get(&id).aggregate(&rating(&[id]));
        Self::product_with_rating(batch, |results| Ok(results.document(0)?))
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
        let body = review(&Review { customer_id, product_id, rating, review: None })?;
        self.database.upsert(&review_id(product_id, customer_id), &body)?;
        Ok(())
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        let Some(document) = self.database.get(&cart_id(cart))? else { return Ok(None) };
        Ok(Some(ascending(document.to::<Order>()?.product_ids)))
    }
}
