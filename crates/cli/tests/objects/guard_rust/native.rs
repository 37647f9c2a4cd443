//! The plug-in as ordinary code, with mocks of its maps and of the service's functions: `cargo test`.

use bpf_guest::mock;
use guard::host::{Request, price, say};
use guard::{SEEN, guard};
use std::sync::mpsc;

fn request<'p>(client: u32, path: &'p [u8]) -> Request<'p> {
    Request { client, cost: 0, path: path.into() }
}

#[test]
fn a_fourth_request_is_refused() {
    mock::reset();
    let (tell, told) = mpsc::channel();
    say::mock(move |text| tell.send(text.to_vec()).unwrap());
    assert_eq!([0; 5].map(|_| guard(&mut request(7, b""))), [0, 0, 0, 1, 1]);
    assert_eq!(guard(&mut request(8, b"")), 0, "another client");
    assert_eq!(SEEN.get(&7).unwrap().get(), 5);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [b"one too many"; 2]);
}

#[test]
fn a_request_with_a_path_has_a_price() {
    mock::reset();
    price::mock(|client| client + 5);
    let mut paid = request(7, b"/a");
    assert_eq!((guard(&mut paid), paid.cost), (0, 12));
}
