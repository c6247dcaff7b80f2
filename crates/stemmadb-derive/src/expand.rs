//! The implementation that the macro writes.

use proc_macro2::TokenStream;
use quote::quote;
use syn::DeriveInput;

use crate::options::{CollectionOptions, IndexOption};

/// The implementation of `stemmadb::typed::DeclaredCollection` for the type of `input`.
pub(crate) fn implementation(input: &DeriveInput, options: &CollectionOptions) -> TokenStream {
    let (ident, name) = (&input.ident, &options.name);
    let key = options.key.iter().map(|path| quote!(.key(#path)));
    let indexes = options.indexes.iter().map(index);
    let expirations = options.expirations.iter().map(|path| quote!(.expire_by(#path)));
    let schema = options.schema.iter().map(|schema| quote!(.schema(&#schema)));
    let views = options.views.iter().map(|view| quote!(.view(#view)));
    quote! {
        #[automatically_derived]
        impl ::stemmadb::typed::DeclaredCollection for #ident {
            const NAME: &'static str = #name;

            fn declarations() -> ::stemmadb::typed::Declarations {
                ::stemmadb::typed::Declarations::new()
                    #(#key)*
                    #(#indexes)*
                    #(#expirations)*
                    #(#schema)*
                    #(#views)*
            }
        }
    }
}

fn index(option: &IndexOption) -> TokenStream {
    let mut paths = option.paths.iter().map(IndexOption::parts);
    let (first, first_descending) = paths.next().unwrap_or_default();
    let start = if first_descending { quote!(on_descending) } else { quote!(on) };
    let rest = paths.map(|(path, is_descending)| {
        let then = if is_descending { quote!(then_descending) } else { quote!(then) };
        quote!(.#then(#path))
    });
    let unique = option.is_unique.then(|| quote!(.unique()));
    quote!(.index(::stemmadb::Index::#start(#first)#(#rest)*#unique))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_written_in_order() {
        let input = syn::parse_str(
            "#[collection(name = \"books\", key = \"isbn\", index(\"author\", \"-year\"), unique(\"isbn\"),
                expire(\"until\"), schema = SCHEMA, views(ByAuthor))] struct Book;",
        )
        .unwrap();
        let options = CollectionOptions::of(&input).unwrap();
        let text: String = implementation(&input, &options).to_string().split_whitespace().collect();
        for part in [
            "impl::stemmadb::typed::DeclaredCollectionforBook",
            "constNAME:&'staticstr=\"books\";",
            ".key(\"isbn\")",
            ".index(::stemmadb::Index::on(\"author\").then_descending(\"year\"))",
            ".index(::stemmadb::Index::on(\"isbn\").unique())",
            ".expire_by(\"until\").schema(&SCHEMA).view(ByAuthor)",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
