//! The shop in Stemma: one document per entity, no declared indexes, public API only.
//!
//! `product:17` has a name and categories. `review:17:4` is customer 4's review of product 17, so there is at most one.
//! Reviews are aggregated by the index, in the same snapshot as the product.

use std::path::Path;

use serde::Serialize;
use stemmadb::{Database, Document, Durability, Error, Options, Selector, Snapshot, Transaction, field};
use uuid::Uuid;

use super::{Agent, CartId, Shop, ascending};
use crate::Result;
use crate::workload::shop::{Order, Product, ProductWithRating, Rating, Review, ShopState, Stock};

/// Describes the configuration, for the report.
pub(super) const SETTINGS: &str = "Stemma: as it opens, `Durability::Sync`, a snapshot for each read";

/// A shop in one database.
pub(crate) struct StemmaShop {
    database: Database,
}

impl StemmaShop {
    /// Creates a shop in the directory `path` and loads the stock in one transaction.
    pub(crate) fn open(path: &Path, stock: &Stock) -> Result<Self> {
        let database = Database::open_with(path, Options::new().durability(Durability::Sync))?;
        database.write(|tx| {
            insert_all(tx, "category", &stock.categories)?;
            insert_all(tx, "product", &stock.products)?;
            insert_all(tx, "customer", &stock.customers)?;
            insert_all(tx, "order", &stock.orders)?;
            for review in &stock.reviews {
                tx.insert(&review_id(review.product_id, review.customer_id), review)?;
            }
            Ok(())
        })?;
        Ok(StemmaShop { database })
    }
}

fn insert_all<T: Serialize>(tx: &mut Transaction<'_>, kind: &str, all: &[T]) -> stemmadb::Result<()> {
    for (number, body) in all.iter().enumerate() {
        tx.insert(&format!("{kind}:{number}"), body)?;
    }
    Ok(())
}

pub(super) fn review_id(product_id: u32, customer_id: u32) -> String {
    format!("review:{product_id}:{customer_id}")
}

pub(super) fn cart_id(cart: CartId) -> String {
    format!("cart:{}", Uuid::from_u128(cart.0).simple())
}

impl Shop for StemmaShop {
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>> {
        Ok(Box::new(StemmaAgent { database: self.database.clone() }))
    }

    fn state(&self) -> Result<ShopState> {
        let snapshot = self.database.snapshot()?;
        let with_prefix = |prefix: &str| snapshot.find(field("_id").begins_with(prefix)).documents();
        let orders =
            |prefix: &str| with_prefix(prefix)?.iter().map(Document::to).collect::<stemmadb::Result<Vec<Order>>>();
        let mut state = ShopState { orders: orders("order:")?, carts: orders("cart:")?, ..ShopState::default() };
        for document in with_prefix("review:")? {
            let review: Review = document.to()?;
            state.ratings.insert((review.product_id, review.customer_id), review.rating);
        }
        Ok(state.normalized())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.close()?)
    }
}

/// Holds a clone of the database handle, which is all a thread needs.
struct StemmaAgent {
    database: Database,
}

impl StemmaAgent {
    fn product_with_rating(snapshot: &Snapshot, document: &Document) -> Result<Option<ProductWithRating>> {
        let Some(id) = document.id().as_str().strip_prefix("product:") else { return Ok(None) };
        let id: u32 = id.parse()?;
        let Product { name, category_ids } = document.to()?;
        let ratings = snapshot.find(field("product_id").eq(id)).summary("rating")?;
        let total = u32::try_from(ratings.sum.and_then(|sum| sum.as_u64()).unwrap_or(0))?;
        Ok(Some(ProductWithRating {
            id,
            name,
            category_ids,
            rating: Rating { total, count: u32::try_from(ratings.count)? },
        }))
    }
}

/// Selects products by name; the id prefix excludes customers, which have names too.
pub(super) fn product_called(name: &str) -> Selector {
    field("name").eq(name).and(field("_id").begins_with("product:"))
}

impl Agent for StemmaAgent {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        let snapshot = self.database.snapshot()?;
        match snapshot.find(product_called(name)).first()? {
            Some(document) => Self::product_with_rating(&snapshot, &document),
            None => Ok(None),
        }
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        let snapshot = self.database.snapshot()?;
        match snapshot.get(&format!("product:{id}"))? {
            Some(document) => Self::product_with_rating(&snapshot, &document),
            None => Ok(None),
        }
    }

    fn create_cart(&mut self) -> Result<CartId> {
        let cart = CartId(Uuid::now_v7().as_u128());
        self.database.insert(&cart_id(cart), &Order { customer_id: None, product_ids: Vec::new() })?;
        Ok(cart)
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        let id = cart_id(cart);
        // Only its own shopper writes to a cart; a concurrent write would fail with `Conflict`.
        let document = self.database.get(&id)?.ok_or("the cart is gone")?;
        let mut contents: Order = document.to()?;
        contents.product_ids.push(product_id);
        self.database.replace(&id, document.revision(), &contents)?;
        Ok(())
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        let id = cart_id(cart);
        let order_id = format!("order:{}", Uuid::now_v7().simple());
        let products = self.database.write(|tx| {
            let document = tx.get(&id)?.ok_or_else(|| Error::not_found("the cart is gone"))?;
            let contents: Order = document.to()?;
            tx.delete(&id, document.revision())?;
            let order = Order { customer_id: Some(customer_id), ..contents };
            tx.insert(&order_id, &order)?;
            Ok(order.product_ids)
        })?;
        Ok(ascending(products))
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
