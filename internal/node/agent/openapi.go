// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"time"
)

type object = map[string]any

// openAPI describes the paths, from the types of their answers.
func openAPI(version string) []byte {
	schemas := object{}
	all := object{}
	parameter := regexp.MustCompile(`\{(\w+)\}`)
	for _, p := range paths {
		operation := object{
			"summary": p.summary,
			"responses": object{
				"200": object{"description": p.summary, "content": object{"application/json": object{"schema": schema(reflect.TypeOf(p.of), schemas)}}},
				"400": object{"description": "a parameter that is not known"},
				"503": object{"description": "nothing has been collected yet"},
			},
		}
		if names := parameter.FindAllStringSubmatch(p.pattern, -1); names != nil {
			var list []any
			for _, m := range names {
				list = append(list, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
			}
			operation["parameters"] = list
			operation["responses"].(object)["404"] = object{"description": "there is no such device or process, or it is not known"}
		}
		all[p.pattern] = object{"get": operation}
	}
	b, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info":    object{"title": "gpupilot-agent", "version": version, "description": "The GPUs of one node. Times are RFC 3339 in UTC; unknown values are absent."},
		"paths":   all, "components": object{"schemas": schemas},
	}, "", "  ")
	if err != nil {
		panic(err) // the description holds strings only
	}
	return b
}

// schema describes a type. Structs are kept in schemas, by name.
func schema(t reflect.Type, schemas object) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.Number]():
		return object{"type": "number"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem(), schemas)
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": schema(t.Elem(), schemas)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schema(t.Elem(), schemas)}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Struct:
	default:
		return object{"type": "integer"}
	}
	name := strings.TrimSuffix(t.Name(), "Doc")
	if _, known := schemas[name]; !known {
		properties, required := object{}, []string{}
		schemas[name] = nil // a type may contain itself
		fields(t, properties, &required, schemas)
		schemas[name] = object{"type": "object", "properties": properties, "required": required}
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func fields(t reflect.Type, properties object, required *[]string, schemas object) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			fields(f.Type, properties, required, schemas)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties[name] = schema(f.Type, schemas)
		if options == "" {
			*required = append(*required, name)
		}
	}
}
