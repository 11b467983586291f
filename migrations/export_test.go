package migrations

// UpFrom and CheckFrom are [Up] and [Check] with the files of another binary.
var UpFrom, CheckFrom = up, check
