//! The shop's collections and views, after BonsaiDb's own commerce benchmark. A review's key is its product and
//! customer, so that there is at most one of each.

use bonsaidb::core::document::{CollectionDocument, Emit};
use bonsaidb::core::schema::view::CollectionMapReduce;
use bonsaidb::core::schema::{
    Collection, NamedCollection, ReduceResult, Schema, View, ViewMapResult, ViewMappedValue, ViewSchema,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Schema)]
#[schema(name = "shop", collections = [Customer, Category, Product, Order, Cart, Review])]
pub(crate) struct ShopSchema;

#[derive(Clone, Debug, Collection, Serialize, Deserialize)]
#[collection(name = "customers", primary_key = u32)]
pub(crate) struct Customer {
    pub(crate) name: String,
    pub(crate) email: String,
    pub(crate) address: String,
    pub(crate) city: String,
    pub(crate) region: String,
    pub(crate) country: String,
    pub(crate) postal_code: String,
    pub(crate) phone: String,
}

#[derive(Clone, Debug, Collection, Serialize, Deserialize)]
#[collection(name = "categories", primary_key = u32)]
pub(crate) struct Category {
    pub(crate) name: String,
}

#[derive(Clone, Debug, Collection, Serialize, Deserialize)]
#[collection(name = "products", primary_key = u32, views = [ProductsByName])]
pub(crate) struct Product {
    pub(crate) name: String,
    pub(crate) category_ids: Vec<u32>,
}

impl NamedCollection for Product {
    type ByNameView = ProductsByName;
}

/// An order; without a customer, the contents of a cart.
#[derive(Clone, Debug, Collection, Serialize, Deserialize)]
#[collection(name = "orders", primary_key = u64)]
pub(crate) struct Order {
    pub(crate) customer_id: Option<u32>,
    pub(crate) product_ids: Vec<u32>,
}

#[derive(Clone, Debug, Default, Collection, Serialize, Deserialize)]
#[collection(name = "carts", primary_key = u64)]
pub(crate) struct Cart {
    pub(crate) product_ids: Vec<u32>,
}

#[derive(Clone, Debug, Collection, Serialize, Deserialize)]
#[collection(name = "reviews", primary_key = (u32, u32), views = [RatingsByProduct])]
pub(crate) struct Review {
    pub(crate) customer_id: u32,
    pub(crate) product_id: u32,
    pub(crate) rating: u8,
    pub(crate) review: Option<String>,
}

/// Products by name: a unique view, which is updated within the writing transaction.
#[derive(Clone, Debug, View, ViewSchema)]
#[view(collection = Product, key = String, value = (), name = "by-name")]
#[view_schema(policy = Unique)]
pub(crate) struct ProductsByName;

impl CollectionMapReduce for ProductsByName {
    fn map<'doc>(&self, document: CollectionDocument<Product>) -> ViewMapResult<'doc, Self>
    where
        CollectionDocument<Product>: 'doc,
    {
        document.header.emit_key(document.contents.name)
    }
}

/// Sums and counts of ratings by product: a lazy view, which is updated by the query that follows each review.
#[derive(Clone, Debug, View, ViewSchema)]
#[view(collection = Review, key = u32, value = Ratings, name = "by-product")]
pub(crate) struct RatingsByProduct;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ratings {
    pub(crate) total: u32,
    pub(crate) count: u32,
}

impl CollectionMapReduce for RatingsByProduct {
    fn map<'doc>(&self, document: CollectionDocument<Review>) -> ViewMapResult<'doc, Self>
    where
        CollectionDocument<Review>: 'doc,
    {
        let ratings = Ratings { total: u32::from(document.contents.rating), count: 1 };
        document.header.emit_key_and_value(document.contents.product_id, ratings)
    }

    fn reduce(&self, mappings: &[ViewMappedValue<'_, Self>], _rereduce: bool) -> ReduceResult<Self> {
        let add = |sum: Ratings, one: &ViewMappedValue<'_, Self>| Ratings {
            total: sum.total + one.value.total,
            count: sum.count + one.value.count,
        };
        Ok(mappings.iter().fold(Ratings::default(), add))
    }
}
