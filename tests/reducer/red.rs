//! The cases RED-3 to RED-37 by number, on threads. `docs/reducer.md` lists them; the suite runs them on the other backends.

/// A test for each case of the suite.
macro_rules! cases {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let cases = reducer_suite::cases();
                let case = cases.iter().find(|case| case.name == stringify!($name)).expect("the suite has it");
                crate::on_threads(case);
            }
        )*

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    red_03_a_bucket_is_launched_at_the_mark_that_completes_it_and_all_before_it
    red_04_rank_0s_first_order_makes_the_buckets_of_all_ranks
    red_05_missing_marks_are_named_in_this_step_and_no_rank_hangs
    red_06_a_rank_that_keeps_its_own_gradient_does
    red_06_what_no_rank_used_keeps_its_gradient_bit_for_bit
    red_06_what_some_rank_used_is_averaged_with_zeros_or_left_alone_as_chosen
    red_07_an_unused_sparse_parameter_gives_no_rows
    red_08_a_second_mark_is_refused_by_name_before_memory_changes
    red_09_a_mark_outside_of_a_step_is_refused_and_nothing_stays_local
    red_10_what_became_trainable_later_or_another_tensor_is_refused_at_its_mark
    red_11_local_steps_may_come_first_with_a_static_graph
    red_12_forwards_without_a_backward_change_nothing
    red_13_the_first_step_is_one_launch_at_its_end_unless_told_otherwise
    red_14_a_users_cap_is_also_the_first_one
    red_15_an_empty_list_of_caps_is_an_error_before_ranks_meet
    red_16_strides_of_single_elements_cost_no_second_copy
    red_17_memory_is_given_back_between_steps_and_taken_again
    red_18_a_gradient_that_was_replaced_is_copied_in_and_one_elsewhere_is_named
    red_19_a_hook_that_fails_by_call_is_an_error_of_the_step_on_all_ranks
    red_19_a_hook_that_fails_by_error_is_an_error_of_the_step_on_all_ranks
    red_19_a_hook_that_fails_by_length_is_an_error_of_the_step_on_all_ranks
    red_19_a_hook_that_fails_by_panic_is_an_error_of_the_step_on_all_ranks
    red_20_powersgd_and_quantise_run_with_many_buckets_and_empty_ones
    red_20_stages_of_several_buckets_have_one_order_on_all_ranks
    red_21_buckets_are_numbered_right_in_every_step_and_red_22_hooks_are_told_of_rebuilds
    red_22_powersgd_goes_on_through_a_rebuild
    red_23_a_hooks_result_is_copied_into_the_slots
    red_26_hooks_of_16_bits_divide_before_they_cast
    red_26_where_a_mean_is_divided_on_a_wire_of_16_bits_can_be_chosen
    red_27_sums_means_and_means_over_samples
    red_28_a_hooks_divisor_is_the_number_of_ranks_with_data
    red_29_a_rank_that_ran_out_has_used_nothing
    red_30_ranks_without_data_learn_whether_the_others_reduce
    red_31_a_rank_that_never_had_data_sets_no_order_and_breaks_no_static_graph
    red_32_a_rank_that_ran_out_is_told_that_its_optimizer_is_stale
    red_33_every_rank_is_told_both_sides_of_what_ranks_disagree_on
    red_34_a_bulk_runs_in_less_memory_than_the_model_has
    red_35_buckets_may_be_made_again_where_parameters_may_be_unused
    red_36_three_ranks_average_within_an_ulp_and_bit_equal_on_all
    red_36_two_and_four_ranks_average_exactly
    red_37_buckets_of_another_dtype_hold_the_first_steps_gradients
}

#[test]
fn every_numbered_case_of_the_suite_is_a_test_by_name() {
    let cases = reducer_suite::cases();
    let numbered: Vec<&str> = cases.iter().map(|case| &*case.name).filter(|name| name.starts_with("red_")).collect();
    assert!(numbered.iter().all(|name| NAMES.contains(name)), "{numbered:?}");
}

/// Where the tests of the cases lie.
const SOURCES: [&str; 4] = ["testing/reducer/src/red", "crates/reducer/src", "tests/reducer", "tests/counting"];

fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn the_page_lists_each_case_with_tests_that_there_are() {
    let page = std::fs::read_to_string(kit::root().join("docs/reducer.md")).unwrap();
    let mut text = String::new();
    SOURCES.iter().for_each(|folder| sources(&kit::root().join(folder), &mut text));
    for number in 1..=37 {
        let row = page.lines().find(|line| line.starts_with(&format!("| RED-{number} |")));
        let row = row.unwrap_or_else(|| panic!("docs/reducer.md has no row for RED-{number}"));
        let tests: Vec<&str> = row.split('`').filter(|word| word.contains("red_")).collect();
        assert!(!tests.is_empty(), "{row}");
        for test in tests {
            assert!(
                test.contains(&format!("red_{number:02}")) && text.contains(test),
                "RED-{number}: there is no {test}"
            );
        }
    }
}
