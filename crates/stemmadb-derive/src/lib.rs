//! The derive macro of stemmadb's typed collections; use it as `stemmadb::Collection`, with the feature `derive`.
//!
//! ```text
//! options   reads `#[collection(…)]` and reports what is wrong with it
//! expand    writes the implementation of `stemmadb::typed::DeclaredCollection`
//! ```

mod expand;
mod options;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Declares a typed collection: its name, key, indexes, views, expiration and schema.
///
/// The options of `#[collection(…)]`, of which only `name` is required:
///
/// | option | meaning |
/// |---|---|
/// | `name = "books"` | the collection's name: its ids begin with `books:` |
/// | `key = "isbn"` | the path that a pushed document's key is taken from |
/// | `index("author", "-year")` | an index on these paths, `-` for descending; may be repeated |
/// | `unique("isbn")` | a unique index on these paths; may be repeated |
/// | `views(ByAuthor, ByYear::new())` | views written in Rust, as expressions |
/// | `expire("expires_at")` | documents expire at the time at this path; may be repeated |
/// | `schema = include_str!("book.json")` | the JSON Schema of the documents: JSON text, or any serializable value |
///
/// The type also implements `Serialize` and `Deserialize`. See the guide on collections for an example.
#[proc_macro_derive(Collection, attributes(collection))]
pub fn derive_collection(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    match options::CollectionOptions::of(&input) {
        Ok(options) => expand::implementation(&input, &options).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
