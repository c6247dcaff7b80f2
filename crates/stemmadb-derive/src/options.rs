//! The options of `#[collection(…)]`. Errors name the option and point at it.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::parse::Parse;
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Error, Expr, Fields, LitStr, Result, Token, parenthesized};

const OPTIONS: &str = "`name`, `key`, `index`, `unique`, `views`, `expire` or `schema`";

/// What a type declares about its collection.
#[derive(Default)]
pub(crate) struct CollectionOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) key: Option<LitStr>,
    pub(crate) indexes: Vec<IndexOption>,
    pub(crate) views: Vec<Expr>,
    pub(crate) expirations: Vec<LitStr>,
    pub(crate) schema: Option<Expr>,
}

/// An index: its paths, each ascending or descending.
pub(crate) struct IndexOption {
    pub(crate) paths: Vec<LitStr>,
    pub(crate) is_unique: bool,
}

impl IndexOption {
    /// The path of a literal, and whether it is descending.
    pub(crate) fn parts(literal: &LitStr) -> (String, bool) {
        let text = literal.value();
        match text.strip_prefix('-') {
            Some(path) => (path.to_owned(), true),
            None => (text, false),
        }
    }
}

impl CollectionOptions {
    /// Reads the options of a type.
    pub(crate) fn of(input: &DeriveInput) -> Result<Self> {
        if let Some(parameter) = input.generics.params.first() {
            return Err(Error::new_spanned(parameter, "the type of a collection can't have parameters"));
        }
        let mut options = CollectionOptions::default();
        let mut has_attribute = false;
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("collection")) {
            has_attribute = true;
            attribute.parse_nested_meta(|meta| options.read(&meta))?;
        }
        let Some(name) = &options.name else {
            let message = "the collection has no name: add `#[collection(name = \"…\")]`";
            let span = if has_attribute { first_attribute_span(&input.attrs) } else { input.ident.span() };
            return Err(Error::new(span, message));
        };
        check_name(name)?;
        options.check_fields(input)?;
        Ok(options)
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let Some(option) = meta.path.get_ident().map(ToString::to_string) else {
            return Err(meta.error(format!("expected {OPTIONS}")));
        };
        match option.as_str() {
            "name" => set_once(&mut self.name, meta)?,
            "key" => set_once(&mut self.key, meta)?,
            "schema" => set_once(&mut self.schema, meta)?,
            "index" | "unique" => {
                let paths = list::<LitStr>(meta, "paths in quotes, such as `(\"author\", \"-year\")`")?;
                self.indexes.push(IndexOption { paths, is_unique: option == "unique" });
            }
            "expire" => self.expirations.extend(list::<LitStr>(meta, "a path in quotes, such as `(\"expires_at\")`")?),
            "views" => self.views.extend(list::<Expr>(meta, "views, such as `(ByAuthor, ByYear)`")?),
            other => return Err(meta.error(format!("`{other}` is no option of a collection: expected {OPTIONS}"))),
        }
        Ok(())
    }

    /// Every path must begin with a field of the type. Attributes of serde may rename fields, so a type that has some
    /// is not checked.
    fn check_fields(&self, input: &DeriveInput) -> Result<()> {
        let Data::Struct(data) = &input.data else { return Ok(()) };
        let Fields::Named(fields) = &data.fields else { return Ok(()) };
        let has_serde = |attributes: &[Attribute]| attributes.iter().any(|one| one.path().is_ident("serde"));
        if has_serde(&input.attrs) || fields.named.iter().any(|field| has_serde(&field.attrs)) {
            return Ok(());
        }
        let names: Vec<String> = fields.named.iter().flat_map(|field| &field.ident).map(unraw).collect();
        let indexed = self.indexes.iter().flat_map(|index| &index.paths);
        for literal in self.key.iter().chain(indexed).chain(&self.expirations) {
            let (path, _) = IndexOption::parts(literal);
            let first = path.split(['.', '[']).next().unwrap_or_default();
            if !path.contains('\\') && !names.iter().any(|name| name == first) {
                return Err(Error::new(literal.span(), format!("`{}` has no field `{first}`", input.ident)));
            }
        }
        Ok(())
    }
}

fn unraw(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or(text.clone(), str::to_owned)
}

fn first_attribute_span(attributes: &[Attribute]) -> Span {
    let own = attributes.iter().find(|attribute| attribute.path().is_ident("collection"));
    own.and_then(|attribute| attribute.path().get_ident().map(syn::Ident::span)).unwrap_or_else(Span::call_site)
}

fn check_name(name: &LitStr) -> Result<()> {
    let text = name.value();
    if text.is_empty() || text.starts_with('_') || text.contains(':') {
        let message = "the name of a collection is not empty, does not begin with `_` and has no colon";
        return Err(Error::new(name.span(), message));
    }
    Ok(())
}

/// Reads `= value`.
fn set_once<T: Parse>(option: &mut Option<T>, meta: &ParseNestedMeta<'_>) -> Result<()> {
    if option.is_some() {
        return Err(meta.error("this option is given twice"));
    }
    *option = Some(meta.value()?.parse()?);
    Ok(())
}

/// Reads `(item, …)`, with at least one item.
fn list<T: Parse>(meta: &ParseNestedMeta<'_>, expected: &str) -> Result<Vec<T>> {
    if !meta.input.peek(syn::token::Paren) {
        return Err(meta.error(format!("expected {expected}")));
    }
    let content;
    parenthesized!(content in meta.input);
    let items = Punctuated::<T, Token![,]>::parse_terminated(&content)
        .map_err(|error| Error::new(error.span(), format!("expected {expected}")))?;
    if items.is_empty() {
        return Err(meta.error(format!("expected {expected}")));
    }
    Ok(items.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        let input: DeriveInput = syn::parse_str(text).unwrap();
        CollectionOptions::of(&input).err().expect("an error").to_string()
    }

    fn error_of_options(options: &str) -> String {
        error_of(&format!(
            "#[collection(name = \"books\", {options})] struct Book {{ isbn: String, tags: Vec<String> }}"
        ))
    }

    #[test]
    fn options_are_read() {
        let text = r#"#[collection(name = "books", key = "isbn", index("author.name", "-year"), unique("isbn"))]
            #[collection(views(ByAuthor, ByYear::new(3)), expire("until"), schema = include_str!("x.json"))]
            struct Book { isbn: String, author: Author, year: i32, until: Option<u64>, r#type: String }"#;
        let options = CollectionOptions::of(&syn::parse_str(text).unwrap()).unwrap();
        assert_eq!(options.name.unwrap().value(), "books");
        assert_eq!(options.key.unwrap().value(), "isbn");
        assert_eq!(options.indexes.iter().map(|index| index.paths.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(!options.indexes[0].is_unique && options.indexes[1].is_unique);
        assert_eq!(IndexOption::parts(&options.indexes[0].paths[1]), ("year".to_owned(), true));
        assert_eq!((options.views.len(), options.expirations.len()), (2, 1));
        assert!(options.schema.is_some());
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let no_name = "the collection has no name: add `#[collection(name = \"…\")]`";
        assert_eq!(error_of("struct Book { isbn: String }"), no_name);
        assert_eq!(error_of("#[collection(key = \"isbn\")] struct Book { isbn: String }"), no_name);
        for name in ["", "_books", "a:b"] {
            let error = error_of(&format!("#[collection(name = \"{name}\")] struct Book;"));
            assert_eq!(error, "the name of a collection is not empty, does not begin with `_` and has no colon");
        }
        let generic = error_of("#[collection(name = \"books\")] struct Book<T> { t: T }");
        assert_eq!(generic, "the type of a collection can't have parameters");
        let options = format!("expected {OPTIONS}");
        assert_eq!(error_of_options("keys = \"isbn\""), format!("`keys` is no option of a collection: {options}"));
        assert_eq!(error_of_options("name = \"twice\""), "this option is given twice");
        assert_eq!(error_of_options("key = 7"), "expected string literal");
        assert_eq!(
            error_of_options("unique = \"isbn\""),
            "expected paths in quotes, such as `(\"author\", \"-year\")`"
        );
        assert_eq!(error_of_options("index(isbn)"), "expected paths in quotes, such as `(\"author\", \"-year\")`");
        assert_eq!(error_of_options("views()"), "expected views, such as `(ByAuthor, ByYear)`");
        for option in ["key = \"isbnn\"", "unique(\"isbnn\")", "index(\"isbn\", \"-isbnn.x\")", "expire(\"isbnn\")"] {
            assert_eq!(error_of_options(option), "`Book` has no field `isbnn`", "{option}");
        }
    }

    #[test]
    fn paths_of_renamed_fields_are_not_checked() {
        for text in [
            "#[collection(name = \"b\", key = \"isbnNumber\")] #[serde(rename_all = \"camelCase\")]
                struct B { isbn_number: u8 }",
            "#[collection(name = \"b\", key = \"n\")] struct B { #[serde(rename = \"n\")] number: u8 }",
            "#[collection(name = \"b\", index(\"tags[]\"), key = \"type\")] struct B { tags: Vec<u8>, r#type: u8 }",
            "#[collection(name = \"b\", key = \"n\")] enum B { A { n: u8 } }",
        ] {
            assert!(CollectionOptions::of(&syn::parse_str(text).unwrap()).is_ok(), "{text}");
        }
    }
}
