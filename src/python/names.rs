//! Lists of names for Python.

use pyo3::prelude::*;
use pyo3::types::PyList;

/// Creates a list of names. `PyList::new` panics if there is no memory for it.
pub fn list_of_names<S: AsRef<str>>(
    py: Python<'_>,
    names: impl Iterator<Item = S>,
) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    names.into_iter().try_for_each(|name| list.append(name.as_ref()))?;
    Ok(list)
}
