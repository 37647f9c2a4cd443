//! The expansion of `#[interface]` on a trait.
//!
//! The trait is kept. The body of each optional method moves to a hidden method, so that the implementation can call
//! it where the table has no program. `bpf_runtime` contains the checks and the calls; the generated code has names
//! and types only.

use crate::{Static, unraw};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Error, FnArg, Ident, ItemTrait, Pat, Result, TraitItem, TraitItemFn, Type};

/// A method's context: its type, and the name of the argument.
struct Context<'a> {
    name: &'a Ident,
    ty: Type,
}

pub(crate) fn expand(mut input: ItemTrait) -> Result<TokenStream> {
    if !input.generics.params.is_empty() || !input.supertraits.is_empty() {
        return Err(Error::new(input.ident.span(), "an interface has no parameters and no supertraits"));
    }
    let (mut methods, mut bodies, mut implementations, mut context) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut any_waits = false;
    for (at, item) in input.items.iter_mut().enumerate() {
        let TraitItem::Fn(method) = item else {
            return Err(Error::new(item.span(), "an interface has methods only"));
        };
        let Context { name: argument, ty } = argument(method)?;
        let argument = argument.clone();
        context.get_or_insert(ty);
        let (name, returns) = (method.sig.ident.clone(), returned(method)?.clone());
        let (text, optional) = (unraw(&name), method.default.is_some());
        let waits = method.sig.asyncness.take().is_some();
        if waits {
            // In place of `async fn`, whose future nobody may send to another thread.
            method.sig.output =
                syn::parse_quote!(-> impl ::core::future::Future<Output = #returns> + ::core::marker::Send);
        }
        methods.push(quote! {
            ::bpf_runtime::interfaces::Method {
                name: #text,
                optional: #optional,
                returns: <<#returns as ::bpf_runtime::interfaces::Returned>::Value
                    as ::bpf_runtime::FromR0>::RETURNS,
                waits: #waits,
            }
        });
        let otherwise = match method.default.take() {
            Some(body) => {
                let mut hidden = method.clone();
                hidden.attrs = vec![syn::parse_quote!(#[doc(hidden)])];
                hidden.sig.ident = format_ident!("__{}_without_program", name);
                let call = &hidden.sig.ident;
                let call = quote!(self.#call(#argument));
                method.default = Some(syn::parse_quote!({ #call }));
                hidden.default = Some(match waits {
                    true => syn::parse_quote!({ async move #body }),
                    false => body,
                });
                bodies.push(TraitItem::Fn(hidden));
                call
            }
            None => quote!(::core::unreachable!("a table without a method that is not optional")),
        };
        let signature = &method.sig;
        let (call, otherwise) = match waits {
            true if optional => (quote!(call_async), quote!(#otherwise.await)),
            true => (quote!(call_async), otherwise),
            false => (quote!(call), otherwise),
        };
        let called = quote!(self.ops.0.#call(#at, &mut self.host, &mut *#argument, self.limits));
        let called = if waits { quote!(#called.await?) } else { quote!(#called?) };
        let body = quote! {
            match #called {
                ::core::option::Option::Some(result) => ::core::result::Result::Ok(result),
                ::core::option::Option::None => #otherwise,
            }
        };
        any_waits |= waits;
        implementations.push(if waits {
            quote!(#signature { async move { #body } })
        } else {
            quote!(#signature { #body })
        });
    }
    input.items.extend(bodies);
    let Some(context) = context else {
        return Err(Error::new(input.ident.span(), "an interface without methods"));
    };
    // The future of a call that waits has the host state.
    let bound = any_waits.then(|| quote!(::core::marker::Send+));
    let (ident, vis) = (&input.ident, &input.vis);
    let [ops, with, module] = ["Ops", "With", "Module"].map(|suffix| format_ident!("{}{}", ident, suffix));
    let doc = format!("A table of programs that implements [`{ident}`], for host state `H`.");
    let doc_module = format!("The programs of a table that implements [`{ident}`], compiled once for many [`{ops}`].");
    let doc_with = format!("[`{ops}`] with its host state: a [`{ident}`].");
    Ok(quote! {
        #input

        #[doc = #doc]
        #vis struct #ops<H: ?::core::marker::Sized>(::bpf_runtime::interfaces::Table<#context, H>);

        impl<H: ?::core::marker::Sized> ::core::clone::Clone for #ops<H> {
            fn clone(&self) -> Self {
                #ops(::core::clone::Clone::clone(&self.0))
            }
        }

        impl<H: ?::core::marker::Sized> ::core::fmt::Debug for #ops<H> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!(#ops)).finish_non_exhaustive()
            }
        }

        #[allow(dead_code, reason = "not every host needs all of it")]
        impl<H: ::bpf_runtime::host::Host + ?::core::marker::Sized> #ops<H> {
            /// Loads the table with this name, whose members are checked against the methods.
            #vis fn load(
                loader: ::bpf_runtime::Loader<'_, #context, H>,
                object: &::bpf_runtime::Object,
                table: &str,
                maps: ::bpf_runtime::MapSet,
            ) -> ::core::result::Result<Self, ::bpf_runtime::host::InterfaceError> {
                ::bpf_runtime::interfaces::Table::load(loader, object, table, maps, Self::METHODS).map(#ops)
            }

            const METHODS: &'static [::bpf_runtime::interfaces::Method] = &[#(#methods),*];

            /// Verifies and compiles the programs of the table of this name, once for many instances.
            #vis fn compile(
                loader: ::bpf_runtime::Loader<'_, #context, H>,
                object: &::bpf_runtime::Object,
                table: &str,
            ) -> ::core::result::Result<#module<H>, ::bpf_runtime::host::InterfaceError> {
                ::bpf_runtime::interfaces::TableModule::compile(loader, object, table, Self::METHODS).map(#module)
            }

            /// Binds the host state for the following calls. Each call runs the version that is current when it
            /// begins.
            #vis fn with<'a>(&'a self, host: &'a mut H::State<'_>) -> #with<'a, H> {
                #with { ops: self, host: ::bpf_runtime::interfaces::Loan::new(host), limits: ::core::option::Option::None }
            }

            /// Replaces the programs by those of `new`, in one step, also while other threads call them.
            #vis fn replace(&self, new: &Self) -> ::core::result::Result<(), ::bpf_runtime::host::InterfaceError> {
                self.0.replace(&new.0)
            }

            /// The current programs and maps.
            #vis fn instance(&self) -> ::bpf_runtime::Instance<H> {
                self.0.instance()
            }

            /// The bytes of a data member of the C structure.
            #vis fn setting(&self, member: &str) -> ::core::option::Option<::std::vec::Vec<u8>> {
                self.0.setting(member)
            }
        }

        #[doc = #doc_module]
        #[allow(dead_code, reason = "not every host makes many instances")]
        #vis struct #module<H: ?::core::marker::Sized>(::bpf_runtime::interfaces::TableModule<#context, H>);

        impl<H: ?::core::marker::Sized> ::core::clone::Clone for #module<H> {
            fn clone(&self) -> Self {
                #module(::core::clone::Clone::clone(&self.0))
            }
        }

        impl<H: ?::core::marker::Sized> ::core::fmt::Debug for #module<H> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!(#module)).finish_non_exhaustive()
            }
        }

        #[allow(dead_code, reason = "not every host makes many instances")]
        impl<H: ::bpf_runtime::host::Host + ?::core::marker::Sized> #module<H> {
            /// Makes an instance with the options that `options` adds: a name, an account, maps, a budget.
            #vis fn make<'m>(
                &'m self,
                options: impl ::core::ops::FnOnce(
                    ::bpf_runtime::instances::Instantiate<'m, #context, H>,
                ) -> ::bpf_runtime::instances::Instantiate<'m, #context, H>,
            ) -> ::core::result::Result<#ops<H>, ::bpf_runtime::host::InterfaceError> {
                self.0.make(options).map(#ops)
            }

            /// The programs as a module.
            #vis fn module(&self) -> &::bpf_runtime::Module<#context, H> {
                self.0.module()
            }
        }

        #[doc = #doc_with]
        #[derive(Debug)]
        #[must_use = "its methods run the programs"]
        #vis struct #with<'a, H: ?::core::marker::Sized> {
            ops: &'a #ops<H>,
            host: ::bpf_runtime::interfaces::Loan<'a, H>,
            limits: ::core::option::Option<&'a ::bpf_runtime::RunLimits>,
        }

        #[allow(dead_code, reason = "not every host limits its calls")]
        impl<'a, H: ?::core::marker::Sized> #with<'a, H> {
            /// Sets limits that apply to each call by itself: a budget, a deadline, a handle to interrupt it. Calls
            /// of a program that was loaded without the needed checks fail (`RunError::Unlimited`).
            #vis fn limits(mut self, limits: &'a ::bpf_runtime::RunLimits) -> Self {
                self.limits = ::core::option::Option::Some(limits);
                self
            }
        }

        impl<H: #bound ::bpf_runtime::host::Host + ?::core::marker::Sized> #ident for #with<'_, H> {
            #(#implementations)*
        }
    })
}

/// The argument of a method besides `&mut self`.
fn argument(method: &TraitItemFn) -> Result<Context<'_>> {
    let signature = &method.sig;
    let wrong = |at: proc_macro2::Span| Error::new(at, "a method takes `&mut self` and a `&mut` of the context");
    let mut inputs = signature.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(this)) if quote!(#this).to_string() == "& mut self" => {}
        _ => return Err(wrong(signature.span())),
    }
    let (Some(FnArg::Typed(argument)), None) = (inputs.next(), inputs.next()) else {
        return Err(wrong(signature.span()));
    };
    let (Pat::Ident(name), Type::Reference(reference)) = (&*argument.pat, &*argument.ty) else {
        return Err(wrong(argument.span()));
    };
    if reference.mutability.is_none() {
        return Err(wrong(argument.span()));
    }
    let mut ty = (*reference.elem).clone();
    Static.visit_type_mut(&mut ty);
    Ok(Context { name: &name.ident, ty })
}

fn returned(method: &TraitItemFn) -> Result<&Type> {
    match &method.sig.output {
        syn::ReturnType::Type(_, ty) => Ok(ty),
        syn::ReturnType::Default => {
            Err(Error::new(method.sig.span(), "a method returns `Result<T, RunError>`: a run may be stopped"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::expand;

    /// A member's name in C may be a keyword in Rust.
    #[test]
    fn raw_names_are_those_of_members_without_their_prefix() {
        let text = "trait P {
            fn r#match(&mut self, r#type: &mut C) -> R;
            fn r#fn(&mut self, r#in: &mut C) -> R { Ok(r#in.port) }
        }";
        let expanded = expand(syn::parse_str(text).expect("a trait")).expect("an interface").to_string();
        for name in ["name : \"match\"", "name : \"fn\"", "fn __fn_without_program", "fn r#match"] {
            assert!(expanded.contains(name), "{name} in {expanded}");
        }
        assert!(!expanded.contains("\"r#"), "{expanded}");
    }

    #[test]
    fn what_is_no_interface_is_refused() {
        for (text, message) in [
            ("trait P {}", "an interface without methods"),
            ("trait P<T> { fn f(&mut self, c: &mut C) -> R; }", "an interface has no parameters and no supertraits"),
            ("trait P: Q { fn f(&mut self, c: &mut C) -> R; }", "an interface has no parameters and no supertraits"),
            ("trait P { const X: u32; }", "an interface has methods only"),
            ("trait P { fn f(&self, c: &mut C) -> R; }", "a method takes `&mut self` and a `&mut` of the context"),
            ("trait P { fn f(&mut self) -> R; }", "a method takes `&mut self` and a `&mut` of the context"),
            ("trait P { fn f(&mut self, c: &C) -> R; }", "a method takes `&mut self` and a `&mut` of the context"),
            (
                "trait P { fn f(&mut self, c: &mut C, d: u32) -> R; }",
                "a method takes `&mut self` and a `&mut` of the context",
            ),
            ("trait P { fn f(&mut self, c: &mut C); }", "a method returns `Result<T, RunError>`: a run may be stopped"),
        ] {
            let input = syn::parse_str(text).expect("a trait");
            assert_eq!(expand(input).expect_err(text).to_string(), message, "{text}");
        }
    }
}
