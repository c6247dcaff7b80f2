//! The shop in Stemma, reached over HTTP: the same documents as within the program, a server in a process of its own, one connection for each agent.
//!
//! What one statement does in SQL takes two requests where the second needs what the first says: a product and then its ratings, a cart and
//! then its next revision. Queries are prepared, as statements are. A transaction (`_transact`) is one request.

use std::cell::RefCell;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use super::stemma::{cart_id, review_id};
use super::{Agent, CartId, Shop, ascending};
use crate::Result;
use crate::served::{Answer, Connection, Served, Site};
use crate::workload::shop::{Order, Product, ProductSeen, Rating, Review, State, Stock};

/// How it is set up, for the record.
pub(super) const SETTINGS: &str =
    "Stemma over HTTP: as `stemma serve` starts, synced, a connection that is kept for each agent, prepared queries";

const DATABASE: &str = "/shop";
/// Documents of one request of the load.
const BATCH_COUNT: usize = 1_000;

/// A shop on a server of its own.
pub(crate) struct StemmaHttpShop {
    served: Served,
    find: String,
}

impl StemmaHttpShop {
    /// A new shop on a server of the databases in `path`.
    pub(crate) fn open(path: &Path, stock: &Stock) -> Result<Self> {
        let served = Served::start(path, "sync")?;
        let site = served.site();
        site.expect(201, "PUT", DATABASE, None)?;
        let mut documents = Vec::new();
        add_all(&mut documents, "category", &stock.categories)?;
        add_all(&mut documents, "product", &stock.products)?;
        add_all(&mut documents, "customer", &stock.customers)?;
        add_all(&mut documents, "order", &stock.orders)?;
        for review in &stock.reviews {
            documents.push(document(&review_id(review.product_id, review.customer_id), review)?);
        }
        for batch in documents.chunks(BATCH_COUNT) {
            let written = site.expect(201, "POST", &at("_bulk_docs"), Some(&json!({"docs": batch}).to_string()))?;
            let rows = written.as_array().ok_or("no rows of what was written")?;
            if rows.len() != batch.len() || rows.iter().any(|row| row.get("error").is_some()) {
                return Err("the stock was not written".into());
            }
        }
        let find = json!({
            "selector": {"name": {"$param": "name"}, "_id": {"$beginsWith": "product:"}},
            "limit": 1,
        });
        let prepared = site.expect(201, "POST", &at("_prepare"), Some(&find.to_string()))?;
        let handle = prepared["handle"].as_str().ok_or("a query without a handle")?;
        Ok(StemmaHttpShop { find: at(&format!("_prepared/{handle}")), served })
    }

    pub(crate) fn site(&self) -> Site {
        self.served.site()
    }
}

/// The path of something in the database.
fn at(what: &str) -> String {
    format!("{DATABASE}/{what}")
}

fn document<T: Serialize>(id: &str, body: &T) -> Result<Value> {
    let mut value = serde_json::to_value(body)?;
    value["_id"] = id.into();
    Ok(value)
}

fn add_all<T: Serialize>(documents: &mut Vec<Value>, kind: &str, all: &[T]) -> Result<()> {
    for (number, body) in all.iter().enumerate() {
        documents.push(document(&format!("{kind}:{number}"), body)?);
    }
    Ok(())
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T> {
    Ok(T::deserialize(value)?)
}

impl Shop for StemmaHttpShop {
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>> {
        let site = self.site();
        let connection = RefCell::new(Connection::open(site.address)?);
        Ok(Box::new(StemmaHttpAgent { site, connection, find: &self.find }))
    }

    fn state(&self) -> Result<State> {
        let site = self.site();
        let all = |kind: &str| -> Result<Vec<Value>> {
            let range = format!("_all_docs?include_docs=true&startkey=%22{kind}:%22&endkey=%22{kind};%22");
            let mut told = site.expect(200, "GET", &at(&range), None)?;
            let rows = told["rows"].as_array_mut().ok_or("a listing without rows")?;
            Ok(rows.iter_mut().map(|row| row["doc"].take()).collect())
        };
        let orders = |kind: &str| all(kind)?.iter().map(read).collect::<Result<Vec<Order>>>();
        let mut state = State { orders: orders("order")?, carts: orders("cart")?, ..State::default() };
        for review in all("review")? {
            let review: Review = read(&review)?;
            state.ratings.insert((review.product_id, review.customer_id), review.rating);
        }
        Ok(state.ordered())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct StemmaHttpAgent<'a> {
    site: Site,
    connection: RefCell<Connection>,
    /// The path of the prepared query.
    find: &'a str,
}

impl StemmaHttpAgent<'_> {
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let body = body.map(Value::to_string);
        self.connection.borrow_mut().ask(&self.site.request(method, path, body.as_deref()))
    }

    /// What it says, if its status is this one.
    fn told(&self, status: u16, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let answer = self.ask(method, path, body)?;
        if answer.status != status {
            let text = String::from_utf8_lossy(&answer.body);
            return Err(format!("{method} {path}: {} instead of {status}: {text}", answer.status).into());
        }
        Ok(serde_json::from_slice(&answer.body)?)
    }

    /// A document, if it is there.
    fn get(&self, id: &str) -> Result<Option<Value>> {
        let answer = self.ask("GET", &at(id), None)?;
        match answer.status {
            200 => Ok(Some(serde_json::from_slice(&answer.body)?)),
            404 => Ok(None),
            status => Err(format!("GET {id}: {status}").into()),
        }
    }

    /// A product with what its reviews come to.
    fn seen(&self, product: &Value) -> Result<ProductSeen> {
        let id = product["_id"].as_str().and_then(|id| id.strip_prefix("product:")).ok_or("no product's id")?;
        let id: u32 = id.parse()?;
        let asked = json!({"selector": {"product_id": id}, "figures": {"count": "count", "total": {"sum": "rating"}}});
        let told = self.told(200, "POST", &at("_aggregate"), Some(&asked))?;
        let figure =
            |name: &str| -> Result<u32> { Ok(told["rows"][0]["value"][name].as_u64().unwrap_or(0).try_into()?) };
        let rating = Rating { total: figure("total")?, count: figure("count")? };
        let Product { name, category_ids } = read(product)?;
        Ok(ProductSeen { id, name, category_ids, rating })
    }
}

impl Agent for StemmaHttpAgent<'_> {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductSeen>> {
        let told = self.told(200, "POST", self.find, Some(&json!({"parameters": {"name": name}})))?;
        told["docs"].as_array().and_then(|docs| docs.first()).map(|product| self.seen(product)).transpose()
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductSeen>> {
        self.get(&format!("product:{id}"))?.map(|product| self.seen(&product)).transpose()
    }

    fn create_cart(&mut self) -> Result<CartId> {
        let cart = CartId(Uuid::now_v7().as_u128());
        let empty = serde_json::to_value(Order { customer_id: None, product_ids: Vec::new() })?;
        self.told(201, "PUT", &at(&cart_id(cart)), Some(&empty))?;
        Ok(cart)
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        let id = cart_id(cart);
        let mut document = self.get(&id)?.ok_or("the cart is gone")?;
        document["product_ids"].as_array_mut().ok_or("a cart without products")?.push(product_id.into());
        self.told(201, "PUT", &at(&id), Some(&document)).map(|_| ())
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        let id = cart_id(cart);
        let cart = self.get(&id)?.ok_or("the cart is gone")?;
        let order = Order { customer_id: Some(customer_id), ..read(&cart)? };
        let placed = document(&format!("order:{}", Uuid::now_v7().simple()), &order)?;
        let gone = json!({"_id": id, "_rev": cart["_rev"], "_deleted": true});
        self.told(201, "POST", &at("_transact"), Some(&json!({"docs": [gone, placed]})))?;
        Ok(ascending(order.product_ids))
    }

    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()> {
        let id = review_id(product_id, customer_id);
        let mut review = serde_json::to_value(Review { customer_id, product_id, rating, review: None })?;
        // Most are new; who changes one learns its revision first, until nobody comes between.
        let mut answer = self.ask("PUT", &at(&id), Some(&review))?;
        while answer.status == 409 {
            let known = self.get(&id)?;
            review["_rev"] = known.map_or(Value::Null, |known| known["_rev"].clone());
            answer = self.ask("PUT", &at(&id), Some(&review))?;
        }
        if answer.status == 201 { Ok(()) } else { Err(format!("PUT {id}: {}", answer.status).into()) }
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        let document = self.get(&cart_id(cart))?;
        document.map(|document| Ok(ascending(read::<Order>(&document)?.product_ids))).transpose()
    }
}
