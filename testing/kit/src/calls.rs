//! Calls: the operators that rewrites make and sketches use; all others mix their operands.

use crate::interp::{Machine, Value, convert};
use crate::tensor::{Mixer, Num, Tensor, is_float, load, store};
use bucketeer::ir::operators::{Fence, effects, split_target};
use bucketeer::ir::{Arg, DType, NodeId, Type};

impl Machine<'_> {
    pub(super) fn call(&mut self, id: NodeId, target: &str, rank: usize) {
        let (namespace, base, overload) = split_target(target);
        let operands = self.graph.operands(id).to_vec();
        let value = self
            .integers(id, base, rank)
            .or_else(|| self.view(id, (namespace, base, overload), rank, &operands))
            .or_else(|| self.write_in_place(id, base, rank, &operands))
            .unwrap_or_else(|| {
                let made = self.made(id, base, rank, &operands);
                let made = made.unwrap_or_else(|| self.mix(id, target, rank, self.graph.type_of(id)));
                self.as_stated(id, rank, made)
            });
        self.set(rank, id, value);
    }

    /// A new tensor with the strides that the source states, which it may rely on.
    fn as_stated(&mut self, id: NodeId, rank: usize, value: Value) -> Value {
        let stated = self.graph.tensor(id).and_then(|ty| ty.strides.as_ref()).map(|strides| self.sizes(strides));
        let (Value::Tensor(dense), Some(strides)) = (&value, stated) else { return value };
        let laid_out = self.settings.laid_out.contains(self.graph.name_of(id));
        if laid_out || dense.elements() == 0 || strides.len() != dense.shape.len() || strides == dense.strides {
            return value;
        }
        let bytes = self.read(rank, dense);
        let span = 1 + dense.shape.iter().zip(&strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>();
        let base = self.new_tensor(rank, dense.dtype, &[span], vec![0; span * dense.width()]);
        let tensor = Tensor { shape: dense.shape.clone(), strides, ..base };
        self.write(rank, &tensor, &bytes);
        Value::Tensor(tensor)
    }

    fn int(&self, id: NodeId, arg: &Arg, rank: usize) -> Option<i64> {
        match arg {
            Arg::Int(value) => Some(*value),
            Arg::Operand(index) => match self.value(rank, self.graph.operands(id)[*index as usize]) {
                Value::Int(value) => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }

    fn ints(&self, id: NodeId, arg: Option<&Arg>, rank: usize) -> Option<Vec<i64>> {
        match arg? {
            Arg::List(items) | Arg::Tuple(items) => items.iter().map(|item| self.int(id, item, rank)).collect(),
            _ => None,
        }
    }

    /// Operators on sizes.
    fn integers(&self, id: NodeId, base: &str, rank: usize) -> Option<Value> {
        let args = self.graph.args_of(id);
        let first = *self.graph.operands(id).first()?;
        if matches!(base, "sym_size" | "sym_numel") {
            let tensor = self.tensor(rank, first)?;
            return Some(Value::Int(match args.positional.get(1) {
                Some(dim) if base == "sym_size" => {
                    let dim = self.int(id, dim, rank)?;
                    tensor.shape[if dim < 0 { dim + tensor.shape.len() as i64 } else { dim } as usize] as i64
                }
                _ => tensor.elements() as i64,
            }));
        }
        if !matches!(self.value(rank, first), Value::Int(_)) {
            return None;
        }
        let (a, b) = (self.int(id, args.positional.first()?, rank)?, self.int(id, args.positional.get(1)?, rank)?);
        Some(Value::Int(match base {
            "mul" => a * b,
            "add" => a + b,
            "sub" => a - b,
            "floordiv" => a.div_euclid(b),
            _ => return None,
        }))
    }

    fn view(&mut self, id: NodeId, target: (&str, &str, &str), rank: usize, operands: &[NodeId]) -> Option<Value> {
        let (namespace, base, overload) = target;
        let args = self.graph.args_of(id);
        let first = *operands.first()?;
        if matches!(base, "getitem" | "item" | "get_tuple_element") {
            let Value::Tuple(values) = self.value(rank, first) else { return None };
            return values.get(args.positional.get(1)?.as_int()? as usize).cloned();
        }
        let tensor = self.tensor(rank, first)?.clone();
        let dim_at = |arg: Option<&Arg>, default: i64| -> Option<usize> {
            let dim = arg.map_or(Some(default), |arg| self.int(id, arg, rank))?;
            Some(if dim < 0 { dim + tensor.shape.len() as i64 } else { dim } as usize)
        };
        let cut = |dim: usize, start: usize, length: usize| {
            let mut part = tensor.clone();
            part.offset += start * part.strides[dim] * part.width();
            part.shape[dim] = length;
            part
        };
        let one = match base {
            "view" if overload == "dtype" => {
                let Arg::DType(dtype) = args.positional.get(1)? else { return None };
                let cast = tensor.bit_cast(*dtype);
                cast.unwrap_or_else(|error| panic!("`{}`: {error}", self.graph.name_of(id)))
            }
            "view" | "reshape" | "_unsafe_view" => {
                let mut sizes = self.ints(id, args.positional.get(1), rank)?;
                let known: i64 = sizes.iter().filter(|size| **size != -1).product();
                let rest = if known == 0 { 0 } else { tensor.elements() as i64 / known };
                sizes.iter_mut().filter(|size| **size == -1).for_each(|size| *size = rest);
                let shape: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
                let name = self.graph.name_of(id);
                assert_eq!(shape.iter().product::<usize>(), tensor.elements(), "elements of `{name}`");
                match tensor.view(&shape) {
                    Some(view) => view,
                    None => {
                        // Source graphs may rely on the strides that an operator unknown here gives its result.
                        let source = !self.settings.laid_out.contains(name);
                        assert!(base == "reshape" || source, "`{name}` views what is not dense");
                        let bytes = self.read(rank, &tensor);
                        self.new_tensor(rank, tensor.dtype, &shape, bytes)
                    }
                }
            }
            "permute" => {
                let dims = self.ints(id, args.positional.get(1), rank)?;
                let pick = |list: &[usize]| dims.iter().map(|&dim| list[dim as usize]).collect::<Vec<_>>();
                Tensor { shape: pick(&tensor.shape), strides: pick(&tensor.strides), ..tensor }
            }
            "transpose" | "t" => {
                let (a, b) = (dim_at(args.at(1, "dim0"), 0)?, dim_at(args.at(2, "dim1"), 1)?);
                let mut turned = tensor.clone();
                turned.shape.swap(a, b);
                turned.strides.swap(a, b);
                turned
            }
            // The native text writes `slice(x, start, end, dim=d)`, ATen `slice(x, d, start, end)`.
            "slice" => {
                let shift = usize::from(!namespace.is_empty());
                let dim = dim_at(args.get("dim").or(args.positional.get(1).filter(|_| shift == 1)), 0)?;
                let size = tensor.shape[dim] as i64;
                let bound = |at: usize, default: i64| {
                    let arg = args.positional.get(at + shift).and_then(|arg| self.int(id, arg, rank));
                    let at = arg.unwrap_or(default);
                    (if at < 0 { at + size } else { at }).clamp(0, size) as usize
                };
                let (start, end) = (bound(1, 0), bound(2, size));
                cut(dim, start, end.saturating_sub(start))
            }
            "narrow" => {
                let number = |at: usize| self.int(id, args.positional.get(at)?, rank);
                cut(dim_at(args.positional.get(1), 0)?, number(2)? as usize, number(3)? as usize)
            }
            "alias" | "detach" | "contiguous" if tensor.is_dense() || base != "contiguous" => tensor,
            "split_with_sizes" | "chunk" => {
                let dim = dim_at(args.at(2, "dim"), 0)?;
                let total = tensor.shape[dim];
                let sizes: Vec<usize> = if base == "chunk" {
                    let count = self.int(id, args.positional.get(1)?, rank)? as usize;
                    let part = total.div_ceil(count).max(1);
                    (0..total.max(1)).step_by(part).map(|start| part.min(total - start)).collect()
                } else {
                    self.ints(id, args.positional.get(1), rank)?.into_iter().map(|size| size as usize).collect()
                };
                assert_eq!(sizes.iter().sum::<usize>(), total, "sizes of `{}`", self.graph.name_of(id));
                let starts = sizes.iter().scan(0, |at, size| {
                    *at += size;
                    Some(*at - size)
                });
                let parts = starts.zip(&sizes).map(|(start, &size)| Value::Tensor(cut(dim, start, size)));
                return Some(Value::Tuple(parts.collect()));
            }
            _ => return None,
        };
        Some(Value::Tensor(one))
    }

    /// Operators that write their first operand.
    fn write_in_place(&mut self, id: NodeId, base: &str, rank: usize, operands: &[NodeId]) -> Option<Value> {
        let function = base.strip_suffix('_').filter(|base| !base.is_empty() && !base.ends_with('_'))?;
        let to = self.tensor(rank, *operands.first()?)?.clone();
        let bytes = match function {
            "copy" => {
                let from = self.tensor(rank, *operands.get(1)?)?.clone();
                assert_eq!(from.elements(), to.elements(), "elements of `{}`", self.graph.name_of(id));
                convert(&self.read(rank, &from), from.dtype, to.dtype)
            }
            "zero" => vec![0; to.elements() * to.width()],
            _ => match self.elementwise(id, function, rank, operands) {
                Some(bytes) => bytes,
                None => {
                    let mixer = self.mixer(id, function, rank);
                    (0..to.elements() as u64).flat_map(|at| mixer.element(to.dtype, at)).collect()
                }
            },
        };
        self.write(rank, &to, &bytes);
        Some(Value::Tensor(to))
    }

    /// Operators that make a tensor of their own.
    fn made(&mut self, id: NodeId, base: &str, rank: usize, operands: &[NodeId]) -> Option<Value> {
        let graph = self.graph;
        let ty = graph.type_of(id).as_tensor();
        let (dtype, shape, bytes) = match base {
            "zeros" | "full" => {
                let shape = match self.ints(id, graph.args_of(id).positional.first(), rank) {
                    Some(sizes) => sizes.into_iter().map(|size| size as usize).collect(),
                    None => self.shape(ty?),
                };
                let dtype = graph.args_of(id).get("dtype").map_or(ty.map(|ty| ty.dtype), |arg| match arg {
                    Arg::DType(dtype) => Some(*dtype),
                    _ => None,
                })?;
                let fill = match graph.args_of(id).positional.get(1) {
                    Some(Arg::Int(value)) => Num::Int(i128::from(*value)),
                    Some(Arg::Float(text)) => Num::Float(text.parse().ok()?),
                    _ => Num::Int(0),
                };
                let bytes = store(dtype, fill).repeat(shape.iter().product());
                (dtype, shape, bytes)
            }
            "alloc" | "empty" => {
                let shape = self.shape(ty?);
                let bytes = vec![0x5a; shape.iter().product::<usize>() * ty?.dtype.bytes() as usize];
                (ty?.dtype, shape, bytes)
            }
            "cat" => {
                let dim = graph.args_of(id).at(1, "dim").map_or(Some(0), Arg::as_int)?;
                let tensors: Vec<Tensor> =
                    operands.iter().map(|&operand| self.tensor(rank, operand).cloned()).collect::<Option<_>>()?;
                let name = graph.name_of(id);
                let dim = if dim < 0 { dim + tensors[0].shape.len() as i64 } else { dim } as usize;
                assert!(tensors.iter().all(|t| t.dtype == tensors[0].dtype), "`{name}` promotes dtypes");
                let mut shape = tensors[0].shape.clone();
                shape[dim] = tensors.iter().map(|tensor| tensor.shape[dim]).sum();
                let rows: usize = shape[..dim].iter().product();
                let parts: Vec<Vec<u8>> = tensors.iter().map(|tensor| self.read(rank, tensor)).collect();
                let row = |row: usize| {
                    parts.iter().flat_map(move |part| {
                        let run = part.len() / rows.max(1);
                        part[row * run..(row + 1) * run].iter().copied()
                    })
                };
                (tensors[0].dtype, shape, (0..rows).flat_map(row).collect())
            }
            "clone" | "copy" | "contiguous" | "cast" | "convert_element_type" | "_to_copy" => {
                let from = self.tensor(rank, *operands.first()?)?.clone();
                let to = match graph.args_of(id).at(1, "dtype") {
                    Some(Arg::DType(dtype)) => *dtype,
                    _ => from.dtype,
                };
                (to, from.shape.clone(), convert(&self.read(rank, &from), from.dtype, to))
            }
            _ => {
                let like = self.tensor(rank, *operands.first()?)?.clone();
                (like.dtype, like.shape, self.elementwise(id, base, rank, operands)?)
            }
        };
        Some(Value::Tensor(self.new_tensor(rank, dtype, &shape, bytes)))
    }

    /// Element by element, on tensors of one dtype and shape, single elements and numbers.
    fn elementwise(&self, id: NodeId, base: &str, rank: usize, operands: &[NodeId]) -> Option<Vec<u8>> {
        let first = self.tensor(rank, *operands.first()?)?.clone();
        let unary: Option<fn(f64) -> f64> = match base {
            "relu" => Some(|x| if x > 0.0 { x } else { 0.0 }),
            "neg" => Some(|x| -x),
            "sin" => Some(f64::sin),
            "cos" => Some(f64::cos),
            "exp" => Some(|x| (x / 100.0).exp()),
            _ => None,
        };
        if !is_float(first.dtype) && !matches!(base, "neg" | "mul" | "add" | "sub") {
            return None;
        }
        let width = first.width();
        let left = self.read(rank, &first);
        let each = |f: &dyn Fn(usize, Num) -> Num| -> Vec<u8> {
            let elements = left.chunks(width).enumerate();
            elements.flat_map(|(at, bytes)| store(first.dtype, f(at, load(first.dtype, bytes)))).collect()
        };
        if let Some(unary) = unary {
            return Some(each(&|_, x| match x {
                Num::Float(x) => Num::Float(unary(x)),
                Num::Int(x) => Num::Int(-x),
            }));
        }
        if !matches!(base, "mul" | "add" | "sub") {
            return None;
        }
        let (dtype, right) = match self.graph.args_of(id).positional.get(1)? {
            Arg::Int(value) => (DType::F64, store(DType::F64, Num::Int(i128::from(*value)))),
            Arg::Float(text) => (DType::F64, store(DType::F64, Num::Float(text.parse().ok()?))),
            Arg::Operand(index) => {
                let second = self.tensor(rank, operands[*index as usize])?;
                if second.shape != first.shape && second.elements() != 1 {
                    return None;
                }
                (second.dtype, self.read(rank, second))
            }
            _ => return None,
        };
        let wide = dtype.bytes() as usize;
        let single = right.len() == wide;
        Some(each(&|at, x| {
            let y = load(dtype, &right[if single { 0 } else { at * wide }..][..wide]);
            let float = |x: f64, y: f64| match base {
                "mul" => x * y,
                "add" => x + y,
                _ => x - y,
            };
            match (x, y) {
                (Num::Int(x), Num::Int(y)) => Num::Int(match base {
                    "mul" => x.wrapping_mul(y),
                    "add" => x.wrapping_add(y),
                    _ => x.wrapping_sub(y),
                }),
                (x, y) => Num::Float(float(x.float(), y.float())),
            }
        }))
    }

    // Operators that are not known.

    fn mixer(&mut self, id: NodeId, target: &str, rank: usize) -> Mixer {
        let graph = self.graph;
        let mut mixer = Mixer::new(target);
        mixer.bytes(format!("{:?}", graph.args_of(id)).as_bytes());
        for &operand in graph.operands(id) {
            self.mix_value(&mut mixer, rank, self.value(rank, operand));
        }
        let effects = effects(graph, id);
        match effects.fence {
            Fence::Free => {}
            Fence::Random => {
                self.ranks[rank].random += 1;
                mixer.number(self.ranks[rank].random);
            }
            Fence::Full => {
                self.ranks[rank].world += 1;
                mixer.number(self.ranks[rank].world);
            }
        }
        mixer
    }

    fn mix_value(&self, mixer: &mut Mixer, rank: usize, value: &Value) {
        match value {
            Value::Tensor(tensor) => {
                mixer.bytes(format!("{:?}{:?}", tensor.dtype, tensor.shape).as_bytes());
                mixer.bytes(&self.read(rank, tensor));
            }
            Value::Tuple(values) => values.iter().for_each(|value| self.mix_value(mixer, rank, value)),
            Value::Int(value) => mixer.number(*value as u64),
            Value::Opaque(value) => mixer.number(*value),
        }
    }

    fn mix(&mut self, id: NodeId, target: &str, rank: usize, ty: &Type) -> Value {
        let mixer = self.mixer(id, target, rank);
        self.grow_value(mixer, rank, ty)
    }

    fn grow_value(&mut self, mixer: Mixer, rank: usize, ty: &Type) -> Value {
        match ty {
            Type::Tensor(ty) => {
                let shape = self.shape(ty);
                let elements = shape.iter().product::<usize>() as u64;
                let bytes = (0..elements).flat_map(|at| mixer.element(ty.dtype, at)).collect();
                Value::Tensor(self.new_tensor(rank, ty.dtype, &shape, bytes))
            }
            Type::Tuple(types) => {
                let part = |(nth, ty)| self.grow_value(Mixer(mixer.at(nth as u64)), rank, ty);
                Value::Tuple(types.iter().enumerate().map(part).collect())
            }
            Type::SymInt(expr) => Value::Int(self.evaluate(expr)),
            _ => Value::Opaque(mixer.at(0)),
        }
    }
}
