//! The shop's operations over any connection to BonsaiDb. Every write returns only after it is flushed.

use bonsaidb::core::connection::{AccessPolicy, Connection};
use bonsaidb::core::document::CollectionDocument;
use bonsaidb::core::schema::{Collection, NamedCollection, SerializedCollection};
use bonsaidb::core::transaction::{Operation, Transaction};

use crate::Result;
use crate::messages::{ProductWithRating, Rating, State, Stock};
use crate::schema::{Cart, Category, Customer, Order, Product, RatingsByProduct, Review};

/// Inserts the stock in one transaction.
pub(crate) fn load<C: Connection>(database: &C, stock: &Stock) -> Result<()> {
    let mut transaction = Transaction::new();
    for (id, one) in (0_u32..).zip(&stock.categories) {
        transaction.push(Operation::insert_serialized::<Category>(Some(&id), one)?);
    }
    for (id, one) in (0_u32..).zip(&stock.products) {
        transaction.push(Operation::insert_serialized::<Product>(Some(&id), one)?);
    }
    for (id, one) in (0_u32..).zip(&stock.customers) {
        transaction.push(Operation::insert_serialized::<Customer>(Some(&id), one)?);
    }
    for (id, one) in (0_u64..).zip(&stock.orders) {
        transaction.push(Operation::insert_serialized::<Order>(Some(&id), one)?);
    }
    for one in &stock.reviews {
        let id = (one.product_id, one.customer_id);
        transaction.push(Operation::insert_serialized::<Review>(Some(&id), one)?);
    }
    transaction.apply(database)?;
    Ok(())
}

/// Brings the lazy view of ratings up to date.
pub(crate) fn update_ratings<C: Connection>(database: &C) -> Result<()> {
    database.view::<RatingsByProduct>().with_key(&0).reduce()?;
    Ok(())
}

/// Finds a product by name.
pub(crate) fn find_product<C: Connection>(database: &C, name: &str) -> Result<Option<ProductWithRating>> {
    Product::load(name, database)?.map(|product| with_rating(database, product)).transpose()
}

/// Reads a product by id.
pub(crate) fn look_up_product<C: Connection>(database: &C, id: u32) -> Result<Option<ProductWithRating>> {
    Product::get(&id, database)?.map(|product| with_rating(database, product)).transpose()
}

fn with_rating<C: Connection>(database: &C, product: CollectionDocument<Product>) -> Result<ProductWithRating> {
    let CollectionDocument { header, contents: Product { name, category_ids } } = product;
    let view = database.view::<RatingsByProduct>().with_key(&header.id);
    // The writer of a review updates the view before returning.
    let ratings = view.with_access_policy(AccessPolicy::NoUpdate).reduce()?;
    let rating = Rating { total: ratings.total, count: ratings.count };
    Ok(ProductWithRating { id: header.id, name, category_ids, rating })
}

/// Creates an empty cart and returns its id.
pub(crate) fn create_cart<C: Connection>(database: &C) -> Result<u64> {
    Ok(Cart::default().push_into(database)?.header.id)
}

/// Adds a product to a cart.
pub(crate) fn add_product<C: Connection>(database: &C, cart: u64, product_id: u32) -> Result<()> {
    let mut cart = Cart::get(&cart, database)?.ok_or("the cart is gone")?;
    cart.contents.product_ids.push(product_id);
    cart.update(database)?;
    Ok(())
}

/// Turns a cart into an order, in one transaction; returns its products in ascending order.
pub(crate) fn checkout<C: Connection>(database: &C, cart: u64, customer_id: u32) -> Result<Vec<u32>> {
    let cart = Cart::get(&cart, database)?.ok_or("the cart is gone")?;
    let order = Order { customer_id: Some(customer_id), product_ids: cart.contents.product_ids };
    let mut transaction = Transaction::new();
    transaction.push(Operation::delete(Cart::collection_name(), cart.header.try_into()?));
    transaction.push(Operation::push_serialized::<Order>(&order)?);
    transaction.apply(database)?;
    Ok(ascending(order.product_ids))
}

/// Creates or replaces a review, and updates the ratings.
pub(crate) fn rate_product<C: Connection>(database: &C, review: Review) -> Result<()> {
    let id = (review.product_id, review.customer_id);
    review.overwrite_into(&id, database).map_err(|failed| failed.error)?;
    update_ratings(database)
}

/// Returns the products in a cart, if it exists.
pub(crate) fn cart<C: Connection>(database: &C, cart: u64) -> Result<Option<Vec<u32>>> {
    Ok(Cart::get(&cart, database)?.map(|cart| ascending(cart.contents.product_ids)))
}

/// Returns everything that shoppers have changed.
pub(crate) fn state<C: Connection>(database: &C) -> Result<State> {
    let orders = Order::all(database).query()?.into_iter().map(|order| order.contents).collect();
    let carts = Cart::all(database).query()?.into_iter();
    let carts = carts.map(|cart| Order { customer_id: None, product_ids: cart.contents.product_ids }).collect();
    let reviews = Review::all(database).query()?.into_iter().map(|review| review.contents);
    let ratings = reviews.map(|review| (review.product_id, review.customer_id, review.rating)).collect();
    Ok(State { orders, carts, ratings })
}

fn ascending(mut numbers: Vec<u32>) -> Vec<u32> {
    numbers.sort_unstable();
    numbers
}
