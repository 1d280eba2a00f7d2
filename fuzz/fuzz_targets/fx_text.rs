#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bucketeer_fuzzing::fx_text(bytes);
});
