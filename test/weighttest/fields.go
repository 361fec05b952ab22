// SPDX-License-Identifier: Apache-2.0

//go:build linux

package weighttest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Texts are what a tenant may write into a text: controls of a terminal, of a spreadsheet and of a browser, and programs
// that are dear or malformed.
var Texts = []string{
	"x\x1b]0;pwned\x07\x1b[2J\r\x9b31m\x00", "\u202egnp\u2066\u200b\ufeff\u2028\U000e0041", "=HYPERLINK(\"http://x\",\"y\")", "+1", "-2+3", "@SUM(1)", "\t=1", "＝1",
	`</script><img src=x onerror=alert(1)>"'` + "`", strings.Repeat("A", 256<<10), strings.Repeat("line\n", 2000), strings.Repeat("e\u0301\u0301\u0301\u0301", 2000), "",
	strings.Repeat("(", 3000) + "1" + strings.Repeat(")", 3000), `(x{0,999}){0,999}`, strings.Repeat("[[", 2000), `"x".matches("(x{0,999})(x{0,999})") ? 1.0 : 2.0`,
	`count_over_time({__name__=~".+"}[28d:1s])`, strings.Repeat("max(", 200) + "1" + strings.Repeat(")", 200), "* * * * *", "../../x", "{{.}}%s%n", "1e308", "NaN", "-1", "99999999999999999999h", "9999999h",
}

// Numbers are what a tenant may write into a number of 64 bits, or as much as fits.
var Numbers = []int64{-1, 0, 1, 30_000_000, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}

// mostOfList bounds the bytes of a list: the API server takes no larger object.
const mostOfList = 1 << 20

// Mutant is one field of an object with one of its hostile values.
type Mutant[T any] struct {
	Field string // its path
	Value int    // the number of the value
	Of    int    // how many values the field has
	make  func(*T) string
}

// Set gives the field of x the value, and says which.
func (m *Mutant[T]) Set(x *T) string { return m.Field + " " + m.make(x) }

// Mutants are those of a type: each of its fields, through lists and maps with one entry, with each value.
func Mutants[T any]() (out []Mutant[T]) {
	walk(reflect.TypeFor[T](), "", 0, func(path string, steps []int, t reflect.Type) {
		values := valuesOf(t)
		for i, set := range values {
			out = append(out, Mutant[T]{path, i, len(values), func(x *T) string { return set(reach(reflect.ValueOf(x).Elem(), steps)) }})
		}
	})
	return out
}

// Sample returns n values of each field, others by another seed; n = 0: all.
func Sample[T any](all []Mutant[T], n int, r *rand.Rand) (out []Mutant[T]) {
	first := map[string]int{}
	for _, m := range all {
		if _, seen := first[m.Field]; !seen {
			first[m.Field] = r.IntN(m.Of)
		}
		if n == 0 || (m.Value-first[m.Field]+m.Of)%m.Of < n {
			out = append(out, m)
		}
	}
	return out
}

// The steps of a path besides the numbers of fields.
const (
	intoPointer = -1 - iota
	intoList
	intoMap
)

var (
	tQuantity, tDuration, tTime, tMicro = reflect.TypeFor[resource.Quantity](), reflect.TypeFor[metav1.Duration](), reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]()
	tIntOrString, tRaw, tGoTime         = reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[runtime.RawExtension](), reflect.TypeFor[time.Time]()
)

// walk calls f with each field of a type that has values, and with lists and maps themselves.
func walk(t reflect.Type, path string, depth int, f func(string, []int, reflect.Type), steps ...int) {
	if depth > 12 {
		return
	}
	add := func(s int) []int { return append(steps[:len(steps):len(steps)], s) }
	if valuesOf(t) != nil {
		f(path, steps, t)
	}
	switch t {
	case tQuantity, tDuration, tTime, tMicro, tIntOrString, tRaw, tGoTime, reflect.TypeFor[metav1.ObjectMeta](), reflect.TypeFor[metav1.TypeMeta]():
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		walk(t.Elem(), path, depth+1, f, add(intoPointer)...)
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				walk(t.Field(i).Type, strings.TrimPrefix(path+"."+t.Field(i).Name, "."), depth+1, f, add(i)...)
			}
		}
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			walk(t.Elem(), path+"[0]", depth+1, f, add(intoList)...)
		}
	}
}

// Fill sets everything below a pointer to something harmless.
func Fill(x any) { fill(reflect.ValueOf(x).Elem(), 0) }

func fill(v reflect.Value, depth int) {
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		*x = metav1.NewTime(time.Now().Add(-time.Minute))
		return
	case *metav1.MicroTime:
		*x = metav1.NewMicroTime(time.Now().Add(-time.Minute))
		return
	case *time.Time:
		*x = time.Now().Add(-time.Minute)
		return
	case *runtime.RawExtension:
		x.Raw = []byte("{}")
		return
	}
	if depth > 12 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("chat")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		if v.Type().Key().Kind() == reflect.String && v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.ValueOf("a").Convert(v.Type().Key()), reflect.ValueOf("b").Convert(v.Type().Elem()))
		}
	}
}

// reach returns the value at the end of the steps, and makes what is missing on the way.
func reach(v reflect.Value, steps []int) reflect.Value {
	for _, s := range steps {
		switch {
		case s == intoPointer:
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		case s == intoList:
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			}
			v = v.Index(0)
		default:
			v = v.Field(s)
		}
	}
	return v
}

// valuesOf are what set a value of a type, and say what; nil: it has only parts.
func valuesOf(t reflect.Type) (out []func(reflect.Value) string) {
	set := func(x any) {
		out = append(out, func(v reflect.Value) string {
			v.Set(reflect.ValueOf(x).Convert(t))
			return short(fmt.Sprint(x))
		})
	}
	switch t {
	case tQuantity:
		for _, s := range []string{"0", "-1", "1n", "9E", "100000000000000000000", "-9E"} {
			set(resource.MustParse(s))
		}
		return out
	case tDuration:
		for _, n := range Numbers {
			set(metav1.Duration{Duration: time.Duration(n)})
		}
		return out
	case tTime, tMicro, tGoTime:
		for _, at := range []time.Time{{}, time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), time.Now().Add(100 * 365 * 24 * time.Hour)} {
			switch t {
			case tTime:
				set(metav1.NewTime(at))
			case tMicro:
				set(metav1.NewMicroTime(at))
			default:
				set(at)
			}
		}
		return out
	case tIntOrString:
		for _, s := range Texts {
			set(intstr.FromString(s))
		}
		for _, n := range []int32{-1, 0, math.MaxInt32, math.MinInt32} {
			set(intstr.FromInt32(n))
		}
		return out
	case tRaw:
		for _, s := range []string{
			strings.Repeat("[", 5000) + strings.Repeat("]", 5000), `"x"`, "7", "null", `{"a":` + strings.Repeat(`{"a":`, 3000) + "1" + strings.Repeat("}", 3001),
			"[" + strings.Repeat("1,", 100000) + "1]", `{"replicas":2147483647,"serving":-2147483648,"wants":[` + strings.Repeat(`{"at":"2026-01-01T00:00:10Z","low":1,"high":2147483647},`, 10000) + `{}]}`,
		} {
			set(runtime.RawExtension{Raw: []byte(s)})
		}
		return out
	}
	switch t.Kind() {
	case reflect.String:
		for _, s := range Texts {
			set(s)
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		for _, n := range Numbers {
			if reflect.Zero(t).OverflowInt(n) {
				continue
			}
			set(n)
		}
	case reflect.Float64:
		for _, x := range []float64{-1, 0, 1e308, -1e308, 5e-324} {
			set(x)
		}
	case reflect.Bool:
		set(true)
		set(false)
	case reflect.Slice:
		out = append(out, func(v reflect.Value) string {
			v.Set(reflect.MakeSlice(t, 0, 0))
			return "an empty list"
		}, func(v reflect.Value) string {
			n := min(20_000, mostOfList/max(1, jsonSize(t.Elem())))
			long := reflect.MakeSlice(t, n, n)
			for i := range n {
				if v.Len() > 0 {
					long.Index(i).Set(v.Index(0))
				}
			}
			v.Set(long)
			return fmt.Sprintf("a list of %d", n)
		})
	case reflect.Map:
		if t.Key().Kind() != reflect.String || t.Elem().Kind() != reflect.String {
			return nil
		}
		for _, s := range Texts {
			out = append(out, func(v reflect.Value) string {
				v.Set(reflect.MakeMap(t))
				v.SetMapIndex(reflect.ValueOf(s).Convert(t.Key()), reflect.ValueOf(s).Convert(t.Elem()))
				return "a map with " + short(s)
			})
		}
		out = append(out, func(v reflect.Value) string {
			v.Set(reflect.MakeMap(t))
			for i := range 20_000 {
				v.SetMapIndex(reflect.ValueOf(fmt.Sprintf("key-%d", i)).Convert(t.Key()), reflect.ValueOf("value").Convert(t.Elem()))
			}
			return "a map of 20000"
		})
	}
	return out
}

// jsonSize is about how many bytes the JSON of a type has.
func jsonSize(t reflect.Type) int {
	switch t.Kind() {
	case reflect.Struct:
		n := 2
		for i := range t.NumField() {
			n += 8 + jsonSize(t.Field(i).Type)
		}
		return min(n, 512)
	case reflect.String:
		return 8
	default:
		return 4
	}
}

func short(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%.32q… of %d bytes", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}

// Cost is what a function costs.
type Cost struct {
	Bytes int64
	Units float64 // of processor time, see Check
}

// Measure returns the least cost of three runs of f.
func Measure(f func()) Cost {
	least := Cost{math.MaxInt64, math.Inf(1)}
	for range 3 {
		b, u := cost(f)
		least.Bytes, least.Units = min(least.Bytes, b), min(least.Units, u/unit())
	}
	return least
}

// The most that what is hostile may cost: as a multiple of what is harmless, and by its bytes, which have to be read.
const (
	mostTimes       = 8
	mostBytesByByte = 160
	mostUnitsByMiB  = 3000
)

// Compare fails if f, whose input has so many bytes, costs far more than a harmless input does. name says what f does.
func Compare(t testing.TB, name string, harmless Cost, size int, f func()) {
	t.Helper()
	bytes := mostTimes*harmless.Bytes + mostBytesByByte*int64(size) + 1<<20
	units := slower * (mostTimes*harmless.Units + mostUnitsByMiB*float64(size)/(1<<20) + 60)
	is := Cost{math.MaxInt64, math.Inf(1)}
	for range 5 { // the machine may be busy
		b, u := cost(f)
		is.Bytes = min(is.Bytes, b)
		if is.Units = min(is.Units, u/float64(200*time.Microsecond)); is.Units > units { // at the least unit it is cheap anyway
			is.Units = min(is.Units, u/unit())
		}
		if is.Bytes <= bytes && is.Units <= units {
			return
		}
	}
	t.Errorf("%s: %.1f MiB and %.0f units of time for %d bytes; a harmless one %.1f MiB and %.1f units",
		name, float64(is.Bytes)/(1<<20), is.Units, size, float64(harmless.Bytes)/(1<<20), harmless.Units)
}
