//! The attributes of `bpf-guest`, which declare functions as programs, statics as maps and structs as contexts.
//!
//! Problem: loaders find programs and maps by section and symbol, and a program has the C calling convention and a
//! number as its result. Approach: the attributes add only that around the author's code. Types are checked by the
//! traits of `bpf-guest`, so that the compiler's messages name the author's types. On targets other than BPF the
//! sections and the calling convention are left out: there a program is a function that tests call.
//!
//! Use them through `bpf_guest`, which documents them.
#![forbid(unsafe_code)]

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::parse::Parser;
use syn::{DeriveInput, Error, FnArg, ItemFn, ItemStatic, LitStr, Result, Signature};

/// Declares a program in this section; see `bpf_guest::program`.
#[proc_macro_attribute]
pub fn program(section: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    finish(syn::parse(section).and_then(|section| expand_program(&section, &syn::parse(item)?)))
}

/// Declares a map; see `bpf_guest::map`.
#[proc_macro_attribute]
pub fn map(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let mut name = None;
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("name") {
            return Err(meta.error("a map is described by its type: there is only `name = \"...\"` to be said here"));
        }
        name = Some(meta.value()?.parse::<LitStr>()?);
        Ok(())
    });
    finish(parser.parse(arguments).and_then(|()| expand_map(&syn::parse(item)?, name.as_ref())))
}

/// Derives a context; see `bpf_guest::BpfContext`.
#[proc_macro_derive(BpfContext, attributes(bpf))]
pub fn derive_bpf_context(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    finish(syn::parse(item).and_then(|item| expand_context(&item)))
}

fn finish(tokens: Result<TokenStream>) -> proc_macro::TokenStream {
    tokens.unwrap_or_else(|error| error.to_compile_error()).into()
}

fn expand_program(section: &LitStr, function: &ItemFn) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    check_signature(sig)?;
    let Some(FnArg::Typed(context)) = sig.inputs.first() else {
        return Err(Error::new_spanned(&sig.inputs, "a program is given its context: one argument, `&mut` of it"));
    };
    let (name, generics, result) = (&sig.ident, &sig.generics, &sig.output);
    let (pattern, ty) = (&context.pat, &context.ty);
    let body = format_ident!("__{name}_body");
    let inner = quote! {
        #[inline(always)]
        fn #body #generics(#pattern: #ty) #result #block
        fn is_context<C: ::bpf_guest::Context + ?Sized>(context: &mut C) -> &mut C {
            context
        }
    };
    let result = quote!(::bpf_guest::ProgramResult::into_r0(#body(is_context(context))));
    Ok(quote! {
        #(#attrs)*
        #[cfg(target_arch = "bpf")]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = #section)]
        #vis extern "C" fn #name #generics(context: #ty) -> u64 {
            #inner
            #result
        }
        #(#attrs)*
        #[cfg(not(target_arch = "bpf"))]
        #[allow(dead_code, reason = "only tests call it")]
        #vis fn #name #generics(context: #ty) -> u64 {
            #inner
            // A panic must reach the test, so no calling convention of C.
            ::bpf_guest::mock::program(|| #result)
        }
    })
}

/// Refuses signatures that a program cannot have.
fn check_signature(sig: &Signature) -> Result<()> {
    let odd = [
        sig.asyncness.as_ref().map(|t| Error::new_spanned(t, "a program runs to its end: it cannot be async")),
        sig.abi.as_ref().map(|t| Error::new_spanned(t, "the attribute adds the calling convention")),
        sig.variadic.as_ref().map(|t| Error::new_spanned(t, "a program is given its context only")),
        sig.generics
            .type_params()
            .next()
            .map(|t| Error::new_spanned(t, "a program is one function: no type parameters")),
        (sig.inputs.len() != 1)
            .then(|| Error::new_spanned(&sig.ident, "a program is given its context: one argument, `&mut` of it")),
    ];
    odd.into_iter().flatten().next().map_or(Ok(()), Err)
}

fn expand_map(item: &ItemStatic, name: Option<&LitStr>) -> Result<TokenStream> {
    if let syn::StaticMutability::Mut(token) = &item.mutability {
        return Err(Error::new_spanned(token, "a map is changed through its methods: no `mut`"));
    }
    let symbol = match name {
        // Loaders read the name from a list of names, each followed by a zero byte.
        Some(name) if name.value().is_empty() || name.value().contains('\0') => {
            return Err(Error::new_spanned(name, "a map has a name, without zeros in it"));
        }
        Some(name) => quote!(export_name = #name),
        None => quote!(no_mangle),
    };
    let ty = &item.ty;
    Ok(quote! {
        #[cfg_attr(target_arch = "bpf", unsafe(#symbol), unsafe(link_section = ".maps"))]
        #item
        const _: fn() = || {
            fn is_map<M: ::bpf_guest::maps::Map>() {}
            is_map::<#ty>();
        };
    })
}

fn expand_context(item: &DeriveInput) -> Result<TokenStream> {
    let mut is_c = false;
    for attr in item.attrs.iter().filter(|attr| attr.path().is_ident("repr")) {
        attr.parse_nested_meta(|meta| {
            is_c |= meta.path.is_ident("C");
            Ok(())
        })?;
    }
    if !is_c {
        return Err(Error::new_spanned(&item.ident, "add `#[repr(C)]`: programs know fields by their offset"));
    }
    let name = &item.ident;
    let (generics, arguments, clause) = item.generics.split_for_impl();
    Ok(quote! {
        // SAFETY: `repr(C)`, with the fields of the host's definition, which is identical.
        unsafe impl #generics ::bpf_guest::Context for #name #arguments #clause {}
    })
}
