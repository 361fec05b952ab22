// SPDX-License-Identifier: Apache-2.0

// Package deploy holds the manifests that programs read as they are shipped.
package deploy

import _ "embed"

// ControllerRBAC is the account of the controller and its rights.
//
//go:embed rbac/controller.yaml
var ControllerRBAC string
