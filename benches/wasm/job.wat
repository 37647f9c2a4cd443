;; The job of docs/book/explanation/comparison.md: filter a record, call the host twice, count in a map. job.c is the
;; eBPF version.
;;
;; The host writes the record to address 0; the map is 256 counters of eight bytes from address 1024 on.
(module
  (import "host" "allowed" (func $allowed (param i64) (result i64)))
  (import "host" "note" (func $note (param i64 i64)))
  (memory (export "memory") 1 1)
  (func (export "filter") (param $record i32) (result i32)
    (local $count i32)
    (if (i32.ne (i32.load (local.get $record)) (i32.const 6))
      (then (return (i32.const 0))))
    (if (i64.eqz (call $allowed (i64.load32_u offset=8 (local.get $record))))
      (then (return (i32.const 0))))
    (local.set $count
      (i32.shl (i32.and (i32.load offset=8 (local.get $record)) (i32.const 255)) (i32.const 3)))
    (i64.store offset=1024 (local.get $count)
      (i64.add (i64.load offset=1024 (local.get $count)) (i64.const 1)))
    (call $note (i64.load32_u offset=12 (local.get $record)) (i64.load32_u offset=4 (local.get $record)))
    (i32.const 1)))
