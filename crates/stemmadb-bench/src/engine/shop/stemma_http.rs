//! The shop in Stemma over HTTP: the same documents, a server in a separate process, one connection per agent.
//!
//! Queries are prepared. Looking up a product by id pipelines two requests, for the product and for its reviews;
//! finding one by name needs the product's id first. Agents cache the carts they wrote with their revisions, and read a
//! cart again only after a conflict. A transaction (`_transact`) is one request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use super::stemma::{cart_id, review_id};
use super::{Agent, CartId, Shop, ascending};
use crate::Result;
use crate::server::{Connection, Endpoint, Response, ServerProcess};
use crate::workload::shop::{Order, Product, ProductWithRating, Rating, Review, ShopState, Stock};

/// Describes the configuration, for the report.
pub(super) const SETTINGS: &str =
    "Stemma over HTTP: as `stemma serve` starts, synced, a connection that is kept for each agent, prepared queries";

const DATABASE: &str = "/shop";
/// Documents per load request.
const BATCH_COUNT: usize = 1_000;

/// A shop on its own server.
pub(crate) struct StemmaHttpShop {
    server: ServerProcess,
    find: String,
}

impl StemmaHttpShop {
    /// Starts a server on the directory `path` and loads the stock.
    pub(crate) fn open(path: &Path, stock: &Stock) -> Result<Self> {
        let server = ServerProcess::start(path, "sync")?;
        let endpoint = server.endpoint();
        endpoint.expect_status(201, "PUT", DATABASE, None)?;
        let mut documents = Vec::new();
        add_all(&mut documents, "category", &stock.categories)?;
        add_all(&mut documents, "product", &stock.products)?;
        add_all(&mut documents, "customer", &stock.customers)?;
        add_all(&mut documents, "order", &stock.orders)?;
        for review in &stock.reviews {
            documents.push(document(&review_id(review.product_id, review.customer_id), review)?);
        }
        for batch in documents.chunks(BATCH_COUNT) {
            let written = endpoint.expect_status(
                201,
                "POST",
                &database_path("_bulk_docs"),
                Some(&json!({"docs": batch}).to_string()),
            )?;
            let rows = written.as_array().ok_or("no rows of what was written")?;
            if rows.len() != batch.len() || rows.iter().any(|row| row.get("error").is_some()) {
                return Err("the stock was not written".into());
            }
        }
        let find = json!({
            "selector": {"name": {"$param": "name"}, "_id": {"$beginsWith": "product:"}},
            "limit": 1,
        });
        let prepared = endpoint.expect_status(201, "POST", &database_path("_prepare"), Some(&find.to_string()))?;
        let handle = prepared["handle"].as_str().ok_or("a query without a handle")?;
        Ok(StemmaHttpShop { find: database_path(&format!("_prepared/{handle}")), server })
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.server.endpoint()
    }
}

/// Returns the URL path of a resource in the database.
fn database_path(what: &str) -> String {
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
        let endpoint = self.endpoint();
        let connection = RefCell::new(Connection::open(endpoint.address)?);
        Ok(Box::new(StemmaHttpAgent { endpoint, connection, find: &self.find, carts: HashMap::new() }))
    }

    fn state(&self) -> Result<ShopState> {
        let endpoint = self.endpoint();
        let all = |kind: &str| -> Result<Vec<Value>> {
            let range = format!("_all_docs?include_docs=true&startkey=%22{kind}:%22&endkey=%22{kind}%3B%22");
            let mut listing = endpoint.expect_status(200, "GET", &database_path(&range), None)?;
            let rows = listing["rows"].as_array_mut().ok_or("a listing without rows")?;
            Ok(rows.iter_mut().map(|row| row["doc"].take()).collect())
        };
        let orders = |kind: &str| all(kind)?.iter().map(read).collect::<Result<Vec<Order>>>();
        let mut state = ShopState { orders: orders("order")?, carts: orders("cart")?, ..ShopState::default() };
        for review in all("review")? {
            let review: Review = read(&review)?;
            state.ratings.insert((review.product_id, review.customer_id), review.rating);
        }
        Ok(state.normalized())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct StemmaHttpAgent<'a> {
    endpoint: Endpoint,
    connection: RefCell<Connection>,
    /// URL path of the prepared query.
    find: &'a str,
    /// The carts that this agent wrote, with their current revisions.
    carts: HashMap<CartId, Value>,
}

impl StemmaHttpAgent<'_> {
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
        self.endpoint.request(method, path, body.map(Value::to_string).as_deref())
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Response> {
        self.connection.borrow_mut().send(&self.request(method, path, body))
    }

    /// Reads a document, if it exists.
    fn get(&self, id: &str) -> Result<Option<Value>> {
        optional_document(&self.call("GET", &database_path(id), None)?)
    }

    /// Builds the request that aggregates a product's reviews.
    fn rating_request(&self, product_id: u32) -> Vec<u8> {
        let figures = json!({"count": "count", "total": {"sum": "rating"}});
        let aggregate = json!({"selector": {"product_id": product_id}, "figures": figures});
        self.request("POST", &database_path("_aggregate"), Some(&aggregate))
    }

    /// Returns the cached cart, or reads it from the server.
    fn known_cart(&mut self, cart: CartId) -> Result<Value> {
        match self.carts.remove(&cart) {
            Some(known) => Ok(known),
            None => Ok(self.get(&cart_id(cart))?.ok_or("the cart is gone")?),
        }
    }

    /// Writes a cart; returns false on a conflict.
    fn put_cart(&mut self, cart: CartId, mut document: Value) -> Result<bool> {
        let path = database_path(&cart_id(cart));
        let response = self.call("PUT", &path, Some(&document))?;
        if response.status == 409 {
            return Ok(false);
        }
        document["_rev"] = expect_json(&response, 201)?["rev"].take();
        self.carts.insert(cart, document);
        Ok(true)
    }
}

/// Parses a response body, if the response has the expected status.
fn expect_json(response: &Response, status: u16) -> Result<Value> {
    if response.status != status {
        let text = String::from_utf8_lossy(&response.body);
        return Err(format!("{} instead of {status}: {text}", response.status).into());
    }
    Ok(serde_json::from_slice(&response.body)?)
}

/// Parses the requested document; `None` if it does not exist.
fn optional_document(response: &Response) -> Result<Option<Value>> {
    if response.status == 404 { Ok(None) } else { expect_json(response, 200).map(Some) }
}

/// Combines a product with its aggregated reviews.
fn product_with_rating(product: &Value, rating: &Response) -> Result<ProductWithRating> {
    let body = expect_json(rating, 200)?;
    let figure = |name: &str| -> Result<u32> { Ok(body["rows"][0]["value"][name].as_u64().unwrap_or(0).try_into()?) };
    let rating = Rating { total: figure("total")?, count: figure("count")? };
    let Product { name, category_ids } = read(product)?;
    Ok(ProductWithRating { id: product_id(product)?, name, category_ids, rating })
}

fn product_id(product: &Value) -> Result<u32> {
    let id = product["_id"].as_str().and_then(|id| id.strip_prefix("product:")).ok_or("no product's id")?;
    Ok(id.parse()?)
}

impl Agent for StemmaHttpAgent<'_> {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        let response = self.call("POST", self.find, Some(&json!({"parameters": {"name": name}})))?;
        let body = expect_json(&response, 200)?;
        let Some(product) = body["docs"].as_array().and_then(|docs| docs.first()) else { return Ok(None) };
        let rating = self.connection.borrow_mut().send(&self.rating_request(product_id(product)?))?;
        product_with_rating(product, &rating).map(Some)
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        let get = self.request("GET", &database_path(&format!("product:{id}")), None);
        let [product, rating] = self.connection.borrow_mut().send_pipelined(&get, &self.rating_request(id))?;
        optional_document(&product)?.map(|product| product_with_rating(&product, &rating)).transpose()
    }

    fn create_cart(&mut self) -> Result<CartId> {
        let cart = CartId(Uuid::now_v7().as_u128());
        let empty = serde_json::to_value(Order { customer_id: None, product_ids: Vec::new() })?;
        if self.put_cart(cart, empty)? { Ok(cart) } else { Err("a cart's id was used before".into()) }
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        loop {
            let mut document = self.known_cart(cart)?;
            document["product_ids"].as_array_mut().ok_or("a cart without products")?.push(product_id.into());
            if self.put_cart(cart, document)? {
                return Ok(());
            }
        }
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        let id = cart_id(cart);
        loop {
            let contents = self.known_cart(cart)?;
            let order = Order { customer_id: Some(customer_id), ..read(&contents)? };
            let placed = document(&format!("order:{}", Uuid::now_v7().simple()), &order)?;
            let gone = json!({"_id": id, "_rev": contents["_rev"], "_deleted": true});
            let response = self.call("POST", &database_path("_transact"), Some(&json!({"docs": [gone, placed]})))?;
            if response.status != 409 {
                expect_json(&response, 201)?;
                return Ok(ascending(order.product_ids));
            }
        }
    }

    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()> {
        let id = review_id(product_id, customer_id);
        let mut review = serde_json::to_value(Review { customer_id, product_id, rating, review: None })?;
        // Most reviews are new. After a conflict, read the current revision and retry.
        let mut response = self.call("PUT", &database_path(&id), Some(&review))?;
        while response.status == 409 {
            let known = self.get(&id)?;
            review["_rev"] = known.map_or(Value::Null, |known| known["_rev"].clone());
            response = self.call("PUT", &database_path(&id), Some(&review))?;
        }
        if response.status == 201 { Ok(()) } else { Err(format!("PUT {id}: {}", response.status).into()) }
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        let document = self.get(&cart_id(cart))?;
        document.map(|document| Ok(ascending(read::<Order>(&document)?.product_ids))).transpose()
    }
}
