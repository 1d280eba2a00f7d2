//! Python values in the arguments of FX nodes, both ways, and the types of what nodes make.

use bucketeer::ir::types::{Dim, Dims};
use bucketeer::ir::{Arg, Args, DType, NodeId, SymExpr, TensorType, Type};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple, PyType};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Arguments may be nested so deep.
const MOST_DEPTH: u32 = 200;

/// What tells the values of PyTorch apart.
pub struct Torch<'py> {
    torch: Bound<'py, PyModule>,
    node: Bound<'py, PyType>,
    tensor: Bound<'py, PyType>,
    /// The class of fake values, where it is known: most values are of it.
    fake_tensor: Option<Bound<'py, PyType>>,
    sym_int: Bound<'py, PyType>,
    sym_float: Bound<'py, PyType>,
    sym_bool: Bound<'py, PyType>,
    dtype: Bound<'py, PyType>,
    device: Bound<'py, PyType>,
    layout: Bound<'py, PyType>,
    memory_format: Bound<'py, PyType>,
    graph_module: Bound<'py, PyType>,
}

impl<'py> Torch<'py> {
    /// Looks the classes up.
    pub fn new(py: Python<'py>) -> PyResult<Self> {
        let torch = py.import(intern!(py, "torch"))?;
        let fx = py.import(intern!(py, "torch.fx"))?;
        let class = |of: &Bound<'py, PyModule>, name: &str| Ok::<_, PyErr>(of.getattr(name)?.cast_into::<PyType>()?);
        Ok(Self {
            node: class(&fx, "Node")?,
            graph_module: class(&fx, "GraphModule")?,
            tensor: class(&torch, "Tensor")?,
            fake_tensor: py
                .import(intern!(py, "torch._subclasses"))
                .ok()
                .and_then(|module| class(&module, "FakeTensor").ok()),
            sym_int: class(&torch, "SymInt")?,
            sym_float: class(&torch, "SymFloat")?,
            sym_bool: class(&torch, "SymBool")?,
            dtype: class(&torch, "dtype")?,
            device: class(&torch, "device")?,
            layout: class(&torch, "layout")?,
            memory_format: class(&torch, "memory_format")?,
            torch,
        })
    }

    /// The graph of the module that an attribute holds, if it holds one.
    pub fn graph_at(&self, owner: &Bound<'py, PyAny>, path: &str) -> Option<Bound<'py, PyAny>> {
        let mut at = owner.clone();
        for part in path.split('.') {
            at = at.getattr(part).ok()?;
        }
        at.is_instance(&self.graph_module).ok().filter(|is| *is)?;
        at.getattr("graph").ok()
    }
}

/// What was met in one graph.
#[derive(Default)]
pub struct Values {
    /// Values that have no form of their own: `<opaque 3>` stands for the fourth.
    opaque: Vec<Py<PyAny>>,
    /// Their numbers by address; they are kept, so no other value gets the same.
    numbers: HashMap<usize, usize>,
    dtypes: HashMap<usize, Option<DType>>,
    /// The symbols of sizes.
    pub symbols: BTreeSet<String>,
    sizes: HashMap<String, Option<SymExpr>>,
    /// The device that was met last, which most values are on.
    device: Option<(Py<PyAny>, Arc<str>)>,
}

impl Values {
    /// Reads a node's arguments: a hole for each node in them, which goes to `operands`.
    pub fn args(
        &mut self,
        torch: &Torch<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        places: &HashMap<usize, NodeId>,
        operands: &mut Vec<NodeId>,
    ) -> PyResult<Args> {
        let mut reading = Reading { values: self, torch, places, operands, depth: 0 };
        let positional = args.iter().map(|value| reading.arg(&value)).collect::<PyResult<_>>()?;
        let mut keyword = Vec::with_capacity(kwargs.len());
        for (key, value) in kwargs.iter() {
            keyword.push((key.cast::<PyString>()?.to_str()?.into(), reading.arg(&value)?));
        }
        Ok(Args { positional, keyword })
    }

    /// The type of a value. Of objects, and of tensors that do not say how they lie, nothing is known.
    pub fn type_of(&mut self, torch: &Torch<'_>, value: &Bound<'_, PyAny>) -> Type {
        // Results are lists of tensors; of what is nested nothing is said.
        let mut plain = |part: Bound<'_, PyAny>| self.plain_type(torch, &part).unwrap_or(Type::Unknown);
        if let Ok(list) = value.cast::<PyList>() {
            return Type::Tuple(list.iter().map(plain).collect());
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            return Type::Tuple(tuple.iter().map(plain).collect());
        }
        plain(value.clone())
    }

    fn plain_type(&mut self, torch: &Torch<'_>, value: &Bound<'_, PyAny>) -> PyResult<Type> {
        let py = value.py();
        let is_tensor = match &torch.fake_tensor {
            Some(fake) if value.get_type().is(fake) => true,
            _ => value.is_instance(&torch.tensor)?,
        };
        if is_tensor {
            let Some(dtype) = self.dtype(&value.getattr(intern!(py, "dtype"))?)? else { return Ok(Type::Unknown) };
            let shape = self.dims(torch, value.getattr(intern!(py, "shape"))?.cast::<PyTuple>()?)?;
            // Sparse tensors have no strides.
            let strides = value.call_method0(intern!(py, "stride")).ok();
            let strides = match strides.as_ref().and_then(|strides| strides.cast::<PyTuple>().ok()) {
                Some(strides) => self.dims(torch, strides)?,
                None => None,
            };
            let (Some(shape), Some(strides)) = (shape, strides) else { return Ok(Type::Unknown) };
            let device = self.device(&value.getattr(intern!(py, "device"))?)?;
            return Ok(Type::Tensor(TensorType { dtype, shape, strides: Some(strides), device: Some(device) }));
        }
        if value.is_instance(&torch.sym_int)? {
            return Ok(self.size(value)?.map_or(Type::Unknown, Type::SymInt));
        }
        if value.is_instance(&torch.sym_float)? || value.is_instance(&torch.sym_bool)? {
            return Ok(Type::SymOther(value.str()?.to_str()?.into()));
        }
        Ok(Type::Unknown)
    }

    fn dtype(&mut self, dtype: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
        // PyTorch makes each dtype once, and keeps it.
        let key = dtype.as_ptr() as usize;
        if let Some(&known) = self.dtypes.get(&key) {
            return Ok(known);
        }
        let text = dtype.str()?;
        let found = text.to_str()?.strip_prefix("torch.").and_then(DType::from_name);
        self.dtypes.insert(key, found);
        Ok(found)
    }

    fn device(&mut self, device: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
        if let Some((last, text)) = &self.device
            && device.eq(last)?
        {
            return Ok(Arc::clone(text));
        }
        let text: Arc<str> = device.str()?.to_str()?.into();
        self.device = Some((device.clone().unbind(), Arc::clone(&text)));
        Ok(text)
    }

    /// Sizes or strides; `None` if one is negative or has no form here.
    fn dims(&mut self, torch: &Torch<'_>, sizes: &Bound<'_, PyTuple>) -> PyResult<Option<Dims>> {
        let mut dims = Dims::new();
        for size in sizes.iter() {
            let dim = match size.cast_exact::<PyInt>() {
                Ok(size) => size.extract::<u64>().ok().map(Dim::Const),
                Err(_) if size.is_instance(&torch.sym_int)? => self.size(&size)?.and_then(Dim::from_expr),
                Err(_) => size.extract::<u64>().ok().map(Dim::Const),
            };
            let Some(dim) = dim else { return Ok(None) };
            dims.push(dim);
        }
        Ok(Some(dims))
    }

    /// A symbolic size, and its symbols.
    fn size(&mut self, size: &Bound<'_, PyAny>) -> PyResult<Option<SymExpr>> {
        let expr = size.getattr("node")?.getattr("expr")?;
        let text = expr.str()?.to_str()?.to_owned();
        if let Some(known) = self.sizes.get(&text) {
            return Ok(known.clone());
        }
        let made = SymExpr::parse(&text).ok();
        if made.is_some() {
            for symbol in expr.getattr("free_symbols")?.try_iter()? {
                self.symbols.insert(symbol?.str()?.to_str()?.to_owned());
            }
        }
        self.sizes.insert(text, made.clone());
        Ok(made)
    }

    /// Arguments as Python has them, with `operands` in the holes.
    pub fn to_python<'py>(
        &self,
        torch: &Torch<'py>,
        args: &Args,
        operands: &[Py<PyAny>],
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let py = torch.torch.py();
        let values =
            args.positional.iter().map(|arg| self.value(torch, arg, operands)).collect::<PyResult<Vec<_>>>()?;
        let kwargs = PyDict::new(py);
        for (key, arg) in &args.keyword {
            kwargs.set_item(&**key, self.value(torch, arg, operands)?)?;
        }
        Ok((PyTuple::new(py, values)?, kwargs))
    }

    fn value<'py>(&self, torch: &Torch<'py>, arg: &Arg, operands: &[Py<PyAny>]) -> PyResult<Bound<'py, PyAny>> {
        let py = torch.torch.py();
        let all =
            |items: &[Arg]| items.iter().map(|item| self.value(torch, item, operands)).collect::<PyResult<Vec<_>>>();
        Ok(match arg {
            Arg::Operand(index) => operands[*index as usize].bind(py).clone(),
            Arg::Int(value) => value.into_pyobject(py)?.into_any(),
            Arg::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
            Arg::Float(text) => PyFloat::new(py, text.parse().map_err(|_| unreadable(text))?).into_any(),
            Arg::Str(text) => PyString::new(py, text).into_any(),
            Arg::None => py.None().into_bound(py),
            Arg::DType(dtype) => torch.torch.getattr(dtype.torch_name())?,
            Arg::Word(word) => self.word(torch, word)?,
            Arg::List(items) => PyList::new(py, all(items)?)?.into_any(),
            Arg::Tuple(items) => PyTuple::new(py, all(items)?)?.into_any(),
            Arg::Apply(name, args) => {
                let (values, kwargs) = self.to_python(torch, args, operands)?;
                match &**name {
                    "device" => torch.device.call(values, Some(&kwargs))?,
                    "slice" => py.get_type::<PySlice>().call1(values)?,
                    "dict" => py.get_type::<PyDict>().call(values, Some(&kwargs))?,
                    _ => return Err(unreadable(name)),
                }
            }
        })
    }

    fn word<'py>(&self, torch: &Torch<'py>, word: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = torch.torch.py();
        let opaque = word.strip_prefix("<opaque ").and_then(|rest| rest.strip_suffix('>'));
        if let Some(kept) = opaque.and_then(|number| self.opaque.get(number.parse::<usize>().ok()?)) {
            return Ok(kept.bind(py).clone());
        }
        match word {
            "inf" => return Ok(PyFloat::new(py, f64::INFINITY).into_any()),
            "-inf" => return Ok(PyFloat::new(py, f64::NEG_INFINITY).into_any()),
            "nan" => return Ok(PyFloat::new(py, f64::NAN).into_any()),
            "..." => return Ok(py.Ellipsis().into_bound(py)),
            _ => {}
        }
        let path = word.strip_prefix("torch.").ok_or_else(|| unreadable(word))?;
        path.split('.').try_fold(torch.torch.clone().into_any(), |at, part| at.getattr(part))
    }
}

fn unreadable(word: &str) -> PyErr {
    PyValueError::new_err(format!("`{word}` in the arguments of a new node has no value in Python"))
}

/// Reading the arguments of one node.
struct Reading<'a, 'py> {
    values: &'a mut Values,
    torch: &'a Torch<'py>,
    places: &'a HashMap<usize, NodeId>,
    operands: &'a mut Vec<NodeId>,
    depth: u32,
}

impl Reading<'_, '_> {
    fn arg(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Arg> {
        if value.get_type().is(&self.torch.node) {
            let place = self.places.get(&(value.as_ptr() as usize));
            let place =
                *place.ok_or_else(|| PyValueError::new_err(format!("`{value}` is used before it is defined")))?;
            self.operands.push(place);
            return Ok(Arg::Operand(self.operands.len() as u32 - 1));
        }
        if value.is_none() {
            return Ok(Arg::None);
        }
        if let Ok(value) = value.cast_exact::<PyBool>() {
            return Ok(Arg::Bool(value.is_true()));
        }
        if value.is_exact_instance_of::<PyInt>() {
            return Ok(match value.extract::<i64>() {
                Ok(value) => Arg::Int(value),
                Err(_) => self.opaque(value),
            });
        }
        if value.is_exact_instance_of::<PyFloat>() {
            let text = value.repr()?;
            let text = text.to_str()?;
            let number = text.bytes().any(|byte| byte.is_ascii_digit());
            return Ok(if number { Arg::Float(text.into()) } else { Arg::Word(text.into()) });
        }
        if let Ok(text) = value.cast_exact::<PyString>() {
            // Half a character is no text.
            return Ok(text.to_str().map_or_else(|_| self.opaque(value), |text| Arg::Str(text.into())));
        }
        self.nested(value)
    }

    fn nested(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Arg> {
        if self.depth > MOST_DEPTH {
            return Err(PyValueError::new_err(format!("arguments are nested more than {MOST_DEPTH} deep")));
        }
        self.depth += 1;
        let made = if let Ok(list) = value.cast::<PyList>() {
            Arg::List(list.iter().map(|item| self.arg(&item)).collect::<PyResult<_>>()?)
        } else if let Ok(tuple) = value.cast::<PyTuple>() {
            Arg::Tuple(tuple.iter().map(|item| self.arg(&item)).collect::<PyResult<_>>()?)
        } else if let Ok(slice) = value.cast::<PySlice>() {
            let bound = |name: &str| slice.getattr(name);
            let bounds = [bound("start")?, bound("stop")?, bound("step")?];
            let bounds = bounds.iter().map(|bound| self.arg(bound)).collect::<PyResult<_>>()?;
            Arg::Apply("slice".into(), Args::positional(bounds))
        } else if let Ok(dict) = value.cast::<PyDict>() {
            self.dict(dict)?
        } else {
            self.object(value)?
        };
        self.depth -= 1;
        Ok(made)
    }

    /// `dict(k=v)`, or `dict([(k, v)])` where a key is no plain string.
    fn dict(&mut self, dict: &Bound<'_, PyDict>) -> PyResult<Arg> {
        let is_word =
            |key: Bound<'_, PyAny>| key.call_method0("isidentifier").is_ok_and(|is| is.is_truthy().unwrap_or(false));
        let mut args = Args::default();
        if dict.keys().iter().all(is_word) {
            for (key, value) in dict.iter() {
                args.keyword.push((key.cast::<PyString>()?.to_str()?.into(), self.arg(&value)?));
            }
        } else {
            let pair = |(key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
                Ok(Arg::Tuple(vec![self.arg(&key)?, self.arg(&value)?]))
            };
            args.positional.push(Arg::List(dict.iter().map(pair).collect::<PyResult<_>>()?));
        }
        Ok(Arg::Apply("dict".into(), args))
    }

    fn object(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Arg> {
        let kind = value.get_type();
        if kind.is(&self.torch.dtype) {
            return Ok(match self.values.dtype(value)? {
                Some(dtype) => Arg::DType(dtype),
                None => self.opaque(value),
            });
        }
        if kind.is(&self.torch.device) {
            let text = value.getattr("type")?;
            let mut keyword = vec![("type".into(), Arg::Str(text.extract::<String>()?.into()))];
            if let Ok(index) = value.getattr("index")?.extract::<i64>() {
                keyword.push(("index".into(), Arg::Int(index)));
            }
            return Ok(Arg::Apply("device".into(), Args { positional: Vec::new(), keyword }));
        }
        if kind.is(&self.torch.layout) || kind.is(&self.torch.memory_format) {
            return Ok(Arg::Word(value.str()?.to_str()?.into()));
        }
        if value.is(value.py().Ellipsis().bind(value.py())) {
            return Ok(Arg::Word("...".into()));
        }
        if value.is_instance(&self.torch.node)? {
            return Err(PyTypeError::new_err(format!("`{value}` is of a class of nodes that is not known")));
        }
        Ok(self.opaque(value))
    }

    /// A value that is handed on as it is.
    fn opaque(&mut self, value: &Bound<'_, PyAny>) -> Arg {
        let Values { opaque, numbers, .. } = &mut *self.values;
        let number = *numbers.entry(value.as_ptr() as usize).or_insert_with(|| {
            opaque.push(value.clone().unbind());
            opaque.len() - 1
        });
        Arg::Word(format!("<opaque {number}>").into())
    }
}
