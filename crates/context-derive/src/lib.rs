//! `#[derive(BpfContext)]`: describes a `#[repr(C)]` struct as the context that programs are verified against.
//!
//! Problem: verifier, interpreter and JIT need the offset, size and kind of each field, and a mistake in such a table
//! lets programs read data that they must not see. Approach: the compiler computes the table. The macro only names
//! the fields; offsets come from `offset_of!`, kinds from `bpf_runtime::host::ContextField`, and assertions on sizes
//! exclude padding. An attribute macro after the derive sees the struct later and may change it, so the generated
//! code checks that the struct is unchanged. Errors in the syntax are reported here at their place; types and
//! assertions in the generated code report the rest.
//!
//! Use it through `bpf_runtime`, which documents it.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod from_r0;
mod interface;

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::visit_mut::{VisitMut, visit_type_mut};
use syn::{Data, DeriveInput, Error, Field, Fields, GenericParam, Ident, Lifetime, LitStr, Meta, Result, Type};

/// Derives a context for the struct; see `bpf_runtime::BpfContext`.
#[proc_macro_derive(BpfContext, attributes(bpf))]
pub fn derive_bpf_context(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    match syn::parse(input).and_then(|input| expand(&input)) {
        Ok(tokens) => tokens.into(),
        Err(error) => error.to_compile_error().into(),
    }
}

/// Derives a program's result for a C enumeration; see `bpf_runtime::FromR0`.
#[proc_macro_derive(FromR0)]
pub fn derive_from_r0(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    match syn::parse(input).and_then(|input| from_r0::expand(&input)) {
        Ok(tokens) => tokens.into(),
        Err(error) => error.to_compile_error().into(),
    }
}

/// Makes the trait an interface for plug-ins; see `bpf_runtime::interface`.
///
/// A plug-in implements it by a table in `SEC(".struct_ops")` or `SEC(".struct_ops.link")`: a C structure with a
/// function pointer for each method, with its name, to a function of one pointer to the context. Each method takes
/// `&mut self` and the context, which is the same type in all of them, and returns `Result<T, RunError>`, where `T`
/// is the integer, `bool`, `()` or enumeration (`derive(FromR0)`) that the C function returns. Methods with a body are
/// optional: where the table has none, the body runs.
///
/// For a trait `Policy`, `PolicyOps<H>` is the loaded table (`PolicyOps::load`). It is cheap to clone, and `replace`
/// replaces it as a whole while it is in use; `with` binds the host state to it for a while, as a `Policy`.
///
/// ```text
/// #[bpf_runtime::interface]
/// trait Policy {
///     fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;
///     fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
///         Ok(())
///     }
/// }
///
/// let policy = PolicyOps::load(linker.loader(), &object, "round_robin", maps)?;
/// let backend = policy.with(&mut host).pick(&mut conn)?;
/// policy.replace(&PolicyOps::load(linker.loader(), &newer, "round_robin", maps)?)?;
/// ```
#[proc_macro_attribute]
pub fn interface(arguments: proc_macro::TokenStream, input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let none = syn::parse::<syn::parse::Nothing>(arguments);
    match none.and_then(|_| syn::parse(input)).and_then(interface::expand) {
        Ok(tokens) => tokens.into(),
        Err(error) => error.to_compile_error().into(),
    }
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = named_fields(input)?;
    check_repr(input)?;
    let name = context_name(input)?;
    let mut lifetimes = Vec::new();
    for param in &input.generics.params {
        match param {
            GenericParam::Lifetime(param) => lifetimes.push(&param.lifetime),
            GenericParam::Type(_) | GenericParam::Const(_) => {
                return Err(Error::new(
                    param.span(),
                    "a context has one layout: it cannot be generic over types or constants",
                ));
            }
        }
    }

    let ident = &input.ident;
    let [fixed, borrowed, elided] = ["'static", "'p", "'_"].map(|name| with_lifetimes(ident, &lifetimes, name));
    let (mut members, mut sizes, mut names, mut types) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for field in fields {
        let Some(field_name) = &field.ident else { continue };
        let (text, writable) = (unraw(field_name), is_writable(field)?);
        let mut ty = field.ty.clone();
        Static.visit_type_mut(&mut ty);
        members.push(quote! {
            ::bpf_runtime::derive::Member {
                name: #text,
                offset: ::core::mem::offset_of!(#fixed, #field_name),
                size: ::core::mem::size_of::<#ty>(),
                shape: <#ty as ::bpf_runtime::host::ContextField>::SHAPE,
                writable: #writable,
            }
        });
        sizes.push(quote!(::core::mem::size_of::<#ty>()));
        names.push(field_name);
        types.push(ty);
    }
    let padding = format!(
        "`{ident}` has padding, which programs would see uninitialised: add a field for it, or order the fields by size"
    );

    Ok(quote! {
        const _: () = {
            const MEMBERS: &[::bpf_runtime::derive::Member] = &[#(#members),*];
            const _: () = {
                ::core::assert!(::core::mem::size_of::<#fixed>() == 0 #(+ #sizes)*, #padding);
                ::bpf_runtime::derive::check(MEMBERS);
                #(::core::assert!(
                    ::core::mem::align_of::<#fixed>() >= ::core::mem::align_of::<#types>(),
                    "an attribute after the derive packed the struct: programs read its fields at their alignment"
                );)*
            };
            // Attributes after the derive may have changed the struct: it must have exactly these fields, of these
            // types. (A reference to a field of a union is unsafe, and one to a packed field an error.)
            const _: fn(&mut #fixed) = |context| {
                let #ident { #(#names: _),* } = &*context;
                #({
                    let field: *mut _ = &mut context.#names;
                    ::bpf_runtime::derive::same_type::<#types>(field);
                })*
            };

            // SAFETY: the struct is `repr(C)` without padding, and its fields are of types that implement
            // `ContextField`, at the offsets that the compiler computes. The parts are those of the mutable borrow.
            unsafe impl ::bpf_runtime::Context for #fixed {
                type Data<'r, 'p> = &'r mut #borrowed where 'p: 'r;

                fn layout() -> &'static ::bpf_runtime::host::ContextLayout {
                    static LAYOUT: ::std::sync::LazyLock<::bpf_runtime::host::ContextLayout> =
                        ::std::sync::LazyLock::new(|| ::bpf_runtime::derive::layout(#name, MEMBERS));
                    &LAYOUT
                }

                fn types() -> ::std::vec::Vec<::bpf_runtime::object::CoreType> {
                    ::bpf_runtime::derive::core_types(#name, ::core::mem::size_of::<#fixed>(), MEMBERS)
                }

                fn own_struct() -> ::core::option::Option<::bpf_runtime::object::CoreType> {
                    ::bpf_runtime::derive::core_types(#name, ::core::mem::size_of::<#fixed>(), MEMBERS).pop()
                }

                #[inline]
                fn parts(data: &mut &mut #elided) -> ::bpf_runtime::host::Parts {
                    ::bpf_runtime::host::Parts::of_context(*data)
                }
            }

            // SAFETY: the members are the struct's fields, each of a type that implements `ContextField`, and there
            // is no padding.
            unsafe impl ::bpf_runtime::host::ContextField for #fixed {
                const SHAPE: ::bpf_runtime::derive::Shape =
                    ::bpf_runtime::derive::Shape::Struct { name: #name, members: MEMBERS };
            }

            impl ::bpf_runtime::BpfContext for #fixed {
                const NAME: &'static str = #name;

                fn c_struct() -> ::std::string::String {
                    ::bpf_runtime::derive::c_struct(#name, MEMBERS)
                }
            }
        };
    })
}

fn named_fields(input: &DeriveInput) -> Result<impl Iterator<Item = &Field>> {
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) if !fields.named.is_empty() => Ok(fields.named.iter()),
            Fields::Named(_) | Fields::Unnamed(_) | Fields::Unit => Err(Error::new(
                input.ident.span(),
                "a context is a struct with named fields: programs know them by name",
            )),
        },
        Data::Enum(_) | Data::Union(_) => {
            Err(Error::new(input.ident.span(), "a context is a struct: programs may read any of its bytes at any time"))
        }
    }
}

fn check_repr(input: &DeriveInput) -> Result<()> {
    let mut is_c = false;
    for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("repr")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("C") {
                return Err(meta.error("a context is `#[repr(C)]` and nothing else: its fields lie where C puts them"));
            }
            is_c = true;
            Ok(())
        })?;
    }
    if is_c {
        Ok(())
    } else {
        Err(Error::new(input.ident.span(), "add `#[repr(C)]`: programs know fields by their offset"))
    }
}

/// The name in `#[bpf(name = "…")]`, or the struct's in snake case.
fn context_name(input: &DeriveInput) -> Result<String> {
    let mut name = None;
    for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("bpf")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("expected `name = \"…\"`"));
            }
            let text: LitStr = meta.value()?.parse()?;
            if !is_c_name(&text.value()) {
                return Err(Error::new(text.span(), "not the name of a C struct"));
            }
            name = Some(text.value());
            Ok(())
        })?;
    }
    Ok(name.unwrap_or_else(|| snake_case(&unraw(&input.ident))))
}

fn is_writable(field: &Field) -> Result<bool> {
    let mut writable = false;
    for attr in field.attrs.iter().filter(|attr| attr.path().is_ident("bpf")) {
        if let Meta::Path(_) | Meta::NameValue(_) = attr.meta {
            return Err(Error::new(attr.span(), "expected `#[bpf(writable)]`"));
        }
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("writable") {
                return Err(meta.error("expected `writable`; fields are read-only without it"));
            }
            writable = true;
            Ok(())
        })?;
    }
    Ok(writable)
}

/// Whether C accepts this as a name; it may be a keyword in Rust.
fn is_c_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let mut bytes = text.bytes();
    bytes.next().is_some_and(is_letter) && bytes.all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

/// The name without `r#`.
fn unraw(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").unwrap_or(&text).to_owned()
}

fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for (i, ch) in name.char_indices() {
        if ch.is_uppercase() && i > 0 && !out.ends_with('_') {
            out.push('_');
        }
        out.extend(ch.to_lowercase());
    }
    out
}

/// The struct type with all its lifetimes replaced by `lifetime`.
fn with_lifetimes(ident: &Ident, lifetimes: &[&Lifetime], lifetime: &str) -> TokenStream {
    if lifetimes.is_empty() {
        return quote!(#ident);
    }
    let all = lifetimes.iter().map(|l| Lifetime::new(lifetime, l.span()));
    quote!(#ident<#(#all),*>)
}

/// Replaces every lifetime by `'static`.
struct Static;

impl VisitMut for Static {
    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        *lifetime = Lifetime::new("'static", lifetime.span());
    }

    fn visit_type_mut(&mut self, ty: &mut Type) {
        visit_type_mut(self, ty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_c() {
        assert!(["x", "_1", "match", "http_request"].into_iter().all(is_c_name));
        assert!(!["", "1x", "r#match", "a-b", "größe", "a b"].into_iter().any(is_c_name));
    }

    #[test]
    fn names_are_in_snake_case() {
        for (name, snake) in [("Request", "request"), ("HttpRequest", "http_request"), ("X", "x"), ("A_b", "a_b")] {
            assert_eq!(snake_case(name), snake);
        }
    }
}
