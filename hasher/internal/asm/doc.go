// Package asm holds the programs that write the assembly of the packages beside
// it. They are a module of their own so that hashfs does not depend on avo.
package asm
