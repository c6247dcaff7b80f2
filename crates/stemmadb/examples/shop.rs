//! Shop: typed collections, a unique index, average ratings in a view, and a checkout of five steps in one transaction.
//!
//! `cargo run --example shop [DIRECTORY]` (default: a temporary directory) prints
//!
//! ```text
//! a second Ann: index `email` is unique, and document `customers:ann` has "ann@example.org" already
//! first cart: paid 3300 cents
//! second cart: Kettle is sold out
//! Cup: 8 left
//! Kettle: 2 left
//! cup: 2.5 stars
//! kettle: 5 stars
//! ```
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stemmadb::{Collection, Database, Document, Emitter, Error, Index, Reduction, Result, View, field};

#[derive(Serialize, Deserialize)]
struct Product {
    name: String,
    price_cents: u64,
    stock: u32,
}

#[derive(Serialize, Deserialize)]
struct Customer {
    name: String,
    email: String,
    credit_cents: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    product: String,
    count: u32,
}

#[derive(Serialize, Deserialize)]
struct Cart {
    customer: String,
    lines: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Order {
    customer: String,
    lines: Vec<Line>,
    total_cents: u64,
}

#[derive(Serialize, Deserialize)]
struct Review {
    product: String,
    stars: u8,
}

/// Each collection contains the documents of one Rust type. Collections need no declaration.
struct Shop {
    db: Database,
    products: Collection<Product>,
    customers: Collection<Customer>,
    carts: Collection<Cart>,
    orders: Collection<Order>,
    reviews: Collection<Review>,
}

impl Shop {
    fn open(db: Database) -> Result<Self> {
        // Every field is indexed automatically; this index adds a unique constraint.
        db.indexes().create(Index::on("email").unique())?;
        Ok(Shop {
            products: db.collection("products")?,
            customers: db.collection("customers")?,
            carts: db.collection("carts")?,
            orders: db.collection("orders")?,
            reviews: db.collection("reviews")?,
            db,
        })
    }

    /// Turns a cart into an order. If any step fails, none takes effect; when it returns, all are flushed to disk.
    fn checkout(&self, cart: &str) -> Result<u64> {
        self.db.write(|tx| {
            // 1. Read the cart.
            let cart = self.carts.within(tx).get(cart)?.ok_or_else(|| Error::not_found("there is no such cart"))?;
            // 2. Take the products from the stock.
            let mut total_cents = 0;
            for Line { product, count } in &cart.content.lines {
                let taken = self.products.within(tx).modify(product, |product| {
                    let left = product.stock.checked_sub(*count);
                    product.stock = left.ok_or_else(|| Error::invalid(format!("{} is sold out", product.name)))?;
                    total_cents += product.price_cents * u64::from(*count);
                    Ok(())
                })?;
                taken.ok_or_else(|| Error::not_found(format!("there is no product {product}")))?;
            }
            // 3. Charge the customer.
            self.customers.within(tx).modify(&cart.content.customer, |customer| {
                let left = customer.credit_cents.checked_sub(total_cents);
                customer.credit_cents = left.ok_or_else(|| Error::invalid(format!("{} can't pay", customer.name)))?;
                Ok(())
            })?;
            // 4. Delete the cart, and 5. insert an order.
            self.carts.within(tx).delete(&cart)?;
            let Cart { customer, lines } = cart.content;
            self.orders.within(tx).push(&Order { customer, lines, total_cents })?;
            Ok(total_cents)
        })
    }
}

/// The average stars of each product. The view maintains them: a query costs the same for ten reviews and for ten
/// million.
struct Ratings;

impl View for Ratings {
    type Key = String;
    type Value = u8;
    type Reduced = f64;

    fn name(&self) -> &str {
        "ratings"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, String, u8>) -> Result<()> {
        if document.id().as_str().starts_with("reviews:") {
            let Review { product, stars } = document.to()?;
            rows.emit(product, stars);
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Average
    }
}

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1).map_or_else(|| temporary.path().join("shop.stemma"), PathBuf::from);
    let shop = Shop::open(Database::open(directory)?)?;
    shop.products.upsert("kettle", &Product { name: "Kettle".into(), price_cents: 2_500, stock: 3 })?;
    shop.products.upsert("cup", &Product { name: "Cup".into(), price_cents: 400, stock: 10 })?;
    let ann = Customer { name: "Ann".into(), email: "ann@example.org".into(), credit_cents: 10_000 };
    shop.customers.upsert("ann", &ann)?;
    let refused = shop.customers.insert("anna", &ann).unwrap_err();
    println!("a second Ann: {refused}");

    for (cart, kettles) in [("first", 1), ("second", 3)] {
        let lines = [("cup", 2), ("kettle", kettles)].map(|(product, count)| Line { product: product.into(), count });
        shop.carts.upsert(cart, &Cart { customer: "ann".into(), lines: lines.into() })?;
        match shop.checkout(cart) {
            Ok(total_cents) => println!("{cart} cart: paid {total_cents} cents"),
            Err(error) => println!("{cart} cart: {error}"),
        }
    }
    // The second checkout took no cups either: it failed as a whole.
    for product in shop.products.find(field("stock").gt(0)).sort("price_cents").entries()? {
        println!("{}: {} left", product.content.name, product.content.stock);
    }

    for (review, product, stars) in [("1", "kettle", 5), ("2", "cup", 4), ("3", "cup", 1)] {
        shop.reviews.upsert(review, &Review { product: product.into(), stars })?;
    }
    for rating in shop.db.view(Ratings)?.query().group()? {
        let (product, average) = rating?;
        println!("{product}: {average} stars");
    }
    Ok(())
}
