//! The shop in Stemma, reached over HTTP: the same documents as within the program, a server in a process of its own, one connection for each agent.
//!
//! Queries are prepared, as statements are. A product that is looked up and what its reviews come to are asked for at once, each without
//! waiting for the other's answer; one that is found by name has to be known before its reviews are. An agent keeps the carts that it wrote,
//! with their revisions, and reads one only if somebody else wrote to it. A transaction (`_transact`) is one request.

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
        Ok(Box::new(StemmaHttpAgent { site, connection, find: &self.find, carts: HashMap::new() }))
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
    /// The carts that this agent wrote last, as it wrote them.
    carts: HashMap<CartId, Value>,
}

impl StemmaHttpAgent<'_> {
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
        self.site.request(method, path, body.map(Value::to_string).as_deref())
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        self.connection.borrow_mut().ask(&self.request(method, path, body))
    }

    /// A document, if it is there.
    fn get(&self, id: &str) -> Result<Option<Value>> {
        found(&self.ask("GET", &at(id), None)?)
    }

    /// What the reviews of a product come to.
    fn rating_request(&self, product_id: u32) -> Vec<u8> {
        let figures = json!({"count": "count", "total": {"sum": "rating"}});
        let asked = json!({"selector": {"product_id": product_id}, "figures": figures});
        self.request("POST", &at("_aggregate"), Some(&asked))
    }

    /// The cart as this agent knows it, with its revision; else as it is.
    fn known_cart(&mut self, cart: CartId) -> Result<Value> {
        match self.carts.remove(&cart) {
            Some(known) => Ok(known),
            None => Ok(self.get(&cart_id(cart))?.ok_or("the cart is gone")?),
        }
    }

    /// Writes a cart; false if somebody else wrote to it.
    fn put_cart(&mut self, cart: CartId, mut document: Value) -> Result<bool> {
        let path = at(&cart_id(cart));
        let answer = self.ask("PUT", &path, Some(&document))?;
        if answer.status == 409 {
            return Ok(false);
        }
        document["_rev"] = told(&answer, 201)?["rev"].take();
        self.carts.insert(cart, document);
        Ok(true)
    }
}

/// What an answer says, if its status is this one.
fn told(answer: &Answer, status: u16) -> Result<Value> {
    if answer.status != status {
        let text = String::from_utf8_lossy(&answer.body);
        return Err(format!("{} instead of {status}: {text}", answer.status).into());
    }
    Ok(serde_json::from_slice(&answer.body)?)
}

/// The document that was asked for, if it is there.
fn found(answer: &Answer) -> Result<Option<Value>> {
    if answer.status == 404 { Ok(None) } else { told(answer, 200).map(Some) }
}

/// A product with what its reviews come to.
fn seen(product: &Value, rating: &Answer) -> Result<ProductSeen> {
    let told = told(rating, 200)?;
    let figure = |name: &str| -> Result<u32> { Ok(told["rows"][0]["value"][name].as_u64().unwrap_or(0).try_into()?) };
    let rating = Rating { total: figure("total")?, count: figure("count")? };
    let Product { name, category_ids } = read(product)?;
    Ok(ProductSeen { id: product_id(product)?, name, category_ids, rating })
}

fn product_id(product: &Value) -> Result<u32> {
    let id = product["_id"].as_str().and_then(|id| id.strip_prefix("product:")).ok_or("no product's id")?;
    Ok(id.parse()?)
}

impl Agent for StemmaHttpAgent<'_> {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductSeen>> {
        let answer = self.ask("POST", self.find, Some(&json!({"parameters": {"name": name}})))?;
        let told = told(&answer, 200)?;
        let Some(product) = told["docs"].as_array().and_then(|docs| docs.first()) else { return Ok(None) };
        let rating = self.connection.borrow_mut().ask(&self.rating_request(product_id(product)?))?;
        seen(product, &rating).map(Some)
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductSeen>> {
        let get = self.request("GET", &at(&format!("product:{id}")), None);
        let [product, rating] = self.connection.borrow_mut().ask_both(&get, &self.rating_request(id))?;
        found(&product)?.map(|product| seen(&product, &rating)).transpose()
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
            let answer = self.ask("POST", &at("_transact"), Some(&json!({"docs": [gone, placed]})))?;
            if answer.status != 409 {
                told(&answer, 201)?;
                return Ok(ascending(order.product_ids));
            }
        }
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
