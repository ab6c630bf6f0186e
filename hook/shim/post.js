// main.js asks who loaded it, and then runs `hostlock action post`.
'use strict';
require('./main.js');
