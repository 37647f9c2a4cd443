//! `derive(FromR0)`: a C enumeration as a program's result.
//!
//! The generated code takes r0 as the enumeration's integer and compares it with each variant, so discriminants are the
//! compiler's, whether they are written or counted.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Ident, Result};

/// The integers that a C enumeration may be, as the derive and its errors name them.
const INTEGERS: [&str; 8] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"];

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Enum(of) = &input.data else {
        return Err(Error::new(input.ident.span(), "a result is an enum without fields"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new(input.generics.span(), "the result of a program has no parameters"));
    }
    if let Some(variant) = of.variants.iter().find(|variant| !matches!(variant.fields, Fields::Unit)) {
        return Err(Error::new(variant.span(), "r0 is a number: a variant of a result has no fields"));
    }
    let (ident, integer) = (&input.ident, integer(input)?);
    let variants = of.variants.iter().map(|variant| &variant.ident);
    Ok(quote! {
        #[automatically_derived]
        impl ::bpf_runtime::FromR0 for #ident {
            const RETURNS: ::bpf_runtime::interfaces::Returns = <#integer as ::bpf_runtime::FromR0>::RETURNS;

            fn from_r0(r0: u64) -> ::core::option::Option<Self> {
                let value = <#integer as ::bpf_runtime::FromR0>::from_r0(r0)?;
                #(if value == Self::#variants as #integer {
                    return ::core::option::Option::Some(Self::#variants);
                })*
                ::core::option::Option::None
            }
        }
    })
}

/// The integer of `repr`, which says how many bytes of r0 count.
fn integer(input: &DeriveInput) -> Result<Ident> {
    let mut found = None;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            found = meta.path.get_ident().filter(|name| INTEGERS.contains(&name.to_string().as_str())).cloned();
            Ok(())
        })?;
    }
    let missing = || {
        let text = "say how many bytes the C function returns: `#[repr(u32)]` for an `enum` or `unsigned int`, \
                    `#[repr(i32)]` for an `int`";
        Error::new(input.ident.span(), text)
    };
    found.ok_or_else(missing)
}
