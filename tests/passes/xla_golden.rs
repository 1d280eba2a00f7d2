//! Policy `xla` against XLA: the members of every bucket, and their order.

use bucketeer::ir::{Dependencies, Graph};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, BucketPlan, Decision, plan};
use bucketeer_formats::Document;
use kit::files;
use serde_json::Value;
use std::collections::BTreeMap;

/// By computation and opcode: the members of each bucket; collectives left alone are buckets of one.
type Buckets = BTreeMap<(String, String), Vec<Vec<String>>>;

fn add(buckets: &mut Buckets, graph: &Graph, plan: &BucketPlan) {
    let entry = |id: bucketeer::ir::NodeId| {
        let region = graph.node(id).region;
        let label = &*graph.region(region).label;
        let opcode = match plan.options.kind {
            BucketKind::Permute => "collective-permute".to_owned(),
            kind => kind.name().replace('_', "-"),
        };
        (label.to_owned(), opcode)
    };
    for bucket in &plan.buckets {
        let names = bucket.members.iter().map(|member| graph.name_of(member.collective).to_owned()).collect();
        buckets.entry(entry(bucket.members[0].collective)).or_default().push(names);
    }
    for remark in plan.remarks.iter().filter(|remark| matches!(remark.decision, Decision::Alone(_))) {
        buckets.entry(entry(remark.node)).or_default().push(vec![remark.name.clone()]);
    }
}

fn of_xla(golden: &Value) -> Buckets {
    let mut buckets = Buckets::new();
    for (computation, kinds) in golden["computations"].as_object().unwrap() {
        for (opcode, list) in kinds.as_object().unwrap() {
            let name = |name: &Value| name.as_str().unwrap().to_owned();
            let members = |bucket: &Value| bucket["members"].as_array().unwrap().iter().map(name).collect();
            let list = list.as_array().unwrap().iter().map(members).collect();
            buckets.insert((computation.clone(), opcode.clone()), list);
        }
    }
    buckets
}

fn of_ours(document: &Document, golden: &Value) -> Buckets {
    let graph = &document.graphs()[0];
    let dependencies = Dependencies::of(graph);
    let kinds: &[BucketKind] = if golden["backend"] == "gpu" { &BucketKind::XLA } else { &[BucketKind::AllReduce] };
    let mut buckets = Buckets::new();
    for &kind in kinds {
        let mut options = BucketOptions::xla(kind);
        options.caps.cap_bytes = golden["threshold_bytes"].as_u64().into_iter().collect();
        options.caps.max_members = golden["threshold_count"].as_u64().map(|count| count as usize);
        options.by_dim = golden["combine_by_dim"].as_bool();
        add(&mut buckets, graph, &plan(graph, &dependencies, &options));
    }
    buckets
}

/// Buckets of the entry computation have its name, which the graph does not keep.
fn with_entry_name(buckets: Buckets, entry: &str) -> Buckets {
    let name = |computation: String| if computation.is_empty() { entry.to_owned() } else { computation };
    buckets.into_iter().map(|((computation, opcode), list)| ((name(computation), opcode), list)).collect()
}

#[test]
fn every_golden_entry_is_reproduced_members_and_order() {
    let golden: Value = serde_json::from_slice(&files::read(&files::xla().join("golden.json"))).unwrap();
    let entries = golden.as_array().unwrap();
    assert_eq!(entries.len(), 63);
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for entry in entries {
        let bytes = files::read(&files::xla().join(entry["input"].as_str().unwrap()));
        let text = String::from_utf8(bytes.clone()).unwrap();
        let main = text.lines().find_map(|line| line.strip_prefix("ENTRY %")?.split(' ').next()).unwrap();
        let document = Document::read(bytes).unwrap();
        let mut found = with_entry_name(of_ours(&document, entry), main);
        let mut expected = of_xla(entry);
        // Where a bucket stands among those left alone says nothing.
        let sort = |buckets: &mut Buckets| {
            for list in buckets.values_mut() {
                let (mut alone, merged): (Vec<_>, Vec<_>) = list.drain(..).partition(|bucket| bucket.len() == 1);
                alone.sort();
                list.extend(merged.into_iter().chain(alone));
            }
        };
        sort(&mut found);
        sort(&mut expected);
        for (key, list) in &expected {
            compared += 1;
            if found.get(key) != Some(list) {
                wrong.push(format!("{} {key:?}:\n  xla  {list:?}\n  ours {:?}", entry["name"], found.get(key)));
            }
        }
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{}", entry["name"]);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(compared, 96, "lists of buckets");
}
